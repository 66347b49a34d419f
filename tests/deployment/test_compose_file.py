"""deploy/compose.yaml fits together and fits the product, also with compose.secure.yaml laid over it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import patience
from deployment.product import master_variables, worker_variables
from elastane_cli.commands.catalogue import load

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"

Compose = dict[str, Any]


def read(name: str) -> Compose:
    """A compose file with the defaults of its variables put in."""
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", r"\2", (DEPLOY / name).read_text())
    assert "${" not in text, "every variable has a default"
    found: Compose = yaml.safe_load(text)
    return found


@pytest.fixture
def plain() -> Compose:
    return read("compose.yaml")


@pytest.fixture
def secure() -> Compose:
    """Both files, as compose merges them: maps by key, the rest replaced."""

    def merged(old: Any, new: Any) -> Any:
        if isinstance(old, dict) and isinstance(new, dict):
            return old | {name: merged(old.get(name), value) for name, value in new.items()}
        return new

    result: Compose = merged(read("compose.yaml"), read("compose.secure.yaml"))
    return result


@pytest.fixture(params=["plain", "secure"])
def compose(request: pytest.FixtureRequest) -> Compose:
    found: Compose = request.getfixturevalue(request.param)
    return found


def test_what_services_name_is_there(compose: Compose) -> None:
    for name, service in compose["services"].items():
        assert set(service["networks"]) <= compose["networks"].keys(), name
        assert set(service.get("secrets", ())) <= compose.get("secrets", {}).keys()
        assert set(service.get("depends_on", ())) <= compose["services"].keys()
        for other, condition in service.get("depends_on", {}).items():
            if condition == {"condition": "service_healthy"}:
                other_service = compose["services"][other]
                assert "healthcheck" in other_service or "HEALTHCHECK" in (ROOT / "Dockerfile").read_text()
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).is_dir(), volume
    used = {volume.partition(":")[0] for s in compose["services"].values() for volume in s.get("volumes", ())}
    assert compose["volumes"].keys() <= used


def test_images_are_built_of_targets_that_exist(compose: Compose) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    targets = re.findall(r"^FROM \S+ AS (\S+)", dockerfile, re.M)
    built = {name: service["build"] for name, service in compose["services"].items() if "build" in service}
    assert set(built) == {"master", "worker"}
    for name, build in built.items():
        assert build["target"] == name
        assert name in targets
        assert (DEPLOY / build["context"] / "Dockerfile").is_file()
        for argument in build.get("args", ()):
            assert f"ARG {argument}=" in dockerfile


def test_variables_are_settings(compose: Compose) -> None:
    known = {"master": master_variables(), "worker": worker_variables()}
    for name, variables in known.items():
        assert compose["services"][name]["environment"].keys() <= variables
    for value in compose["services"]["master"]["environment"].values():
        assert isinstance(value, str), "compose takes text; an unquoted yes or 1 is none"


def test_addresses_are_those_of_services(compose: Compose) -> None:
    services = compose["services"]
    master = services["master"]["environment"]
    assert re.fullmatch(r"redis://redis:6379/0", master["ELASTANE_STORE"])
    assert (
        services["worker"]["environment"]["ELASTANE_MASTER"] == master["ELASTANE_ADVERTISE"] == "master:50051"
    )
    inside = {port.rpartition(":")[2] for port in services["master"]["ports"]}
    assert inside == {"50051", master["ELASTANE_HTTP"].rpartition(":")[2]}
    assert set(services["redis"]["networks"]) & set(services["master"]["networks"])
    assert set(services["worker"]["networks"]) & set(services["master"]["networks"])


def test_nothing_is_open_but_to_this_machine(compose: Compose) -> None:
    for name, service in compose["services"].items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} opens {port}"
    assert not set(compose["services"]["worker"]["networks"]) & set(compose["services"]["redis"]["networks"])


def test_redis_keeps_its_log_on_a_volume(plain: Compose) -> None:
    redis = plain["services"]["redis"]
    assert redis["command"][1:3] == ["--appendonly", "yes"]
    assert "redis:/data" in redis["volumes"]


def test_containers_have_no_rights_and_nothing_writable(compose: Compose) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "stop_grace_period" in service


def test_the_workers_command_is_one(plain: Compose) -> None:
    service = plain["services"]["worker"]
    command = load("run")
    context = command.context_class(command, info_name="run", **command.context_settings)
    given, rest, _ = command.make_parser(context).parse_args([str(part) for part in service["command"]])
    assert given["ests"] == "4"
    mounts = dict(volume.split(":")[:2] for volume in service["volumes"])
    folder = {inside: source for source, inside in mounts.items()}
    assert given["checkpoint_url"] in folder
    assert (DEPLOY / folder["/workspace"] / (given.get("script") or rest)[0]).is_file()
    grace = int(service["stop_grace_period"].removesuffix("s"))
    assert grace > 30, "more than --grace, or a worker is killed while it drains"


def test_with_tls_nothing_is_left_open(secure: Compose) -> None:
    master, worker = secure["services"]["master"], secure["services"]["worker"]
    assert master["environment"]["ELASTANE_MASTER_INSECURE"] == "0"
    for service in (master, worker):
        for value in service["environment"].values():
            if value.startswith("/run/secrets/"):
                assert value.removeprefix("/run/secrets/") in service["secrets"]
    for name in ("ELASTANE_MASTER_TLS_CERT", "ELASTANE_MASTER_TLS_KEY", "ELASTANE_MASTER_TOKEN_FILE"):
        assert name in master["environment"]
    assert {"ELASTANE_TLS_CA", "ELASTANE_TOKEN_FILE", "ELASTANE_WORKER_TOKEN_FILE"} <= worker[
        "environment"
    ].keys()
    assert "master.key" not in worker["secrets"]


def has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_compose(), reason="needs docker compose, which reads the files itself")
@pytest.mark.parametrize("files", [["compose.yaml"], ["compose.yaml", "compose.secure.yaml"]])
def test_compose_reads_it(files: list[str]) -> None:
    named = [part for file in files for part in ("-f", str(DEPLOY / file))]
    done = patience.run(
        ["docker", "compose", *named, "config", "--quiet"],
        capture_output=True, text=True, timeout=60, env={**os.environ, "COMPOSE_PROJECT_NAME": "elastane"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
