"""What manifests are held against: the programs' settings, and the secrets that the page makes."""

from __future__ import annotations

from typing import Any

from elastane.runtime.environment import WorkerEnvironment
from elastane_cli.commands.catalogue import load
from elastane_common.credentials import Credentials
from elastane_master.security.settings import SecuritySettings
from elastane_master.settings import MasterSettings

#: Secrets that docs/deploy.md has the user make, with the keys that they must have.
SECRETS = {
    "elastane-tls": {"tls.crt", "tls.key", "ca.crt"},
    "elastane-tokens": {"tokens.toml"},
    "elastane-metrics": {"token"},
    "elastane-redis": {"password", "ca.crt"},
}


def master_variables() -> set[str]:
    """Of a master, and of `elastane health` beside it."""
    return _of(MasterSettings) - {"ELASTANE_SECURITY"} | _of(SecuritySettings) | _of(Credentials)


def worker_variables() -> set[str]:
    """Of `elastane run`, and of the script that it runs."""
    own = {"ELASTANE_WORKER_TOKEN", "ELASTANE_WORKER_TOKEN_FILE"}
    return own | _options("run") | _of(Credentials) | _of(WorkerEnvironment)


def operator_variables() -> set[str]:
    """Of the operator."""
    from elastane_operator.settings import OperatorSettings

    return _of(OperatorSettings)


def _of(settings: Any) -> set[str]:
    prefix = settings.model_config["env_prefix"]
    return {f"{prefix}{name}".upper() for name in settings.model_fields}


def _options(command: str) -> set[str]:
    found = set()
    for parameter in load(command).params:
        named = parameter.envvar or ()
        found |= {named} if isinstance(named, str) else set(named)
    return found
