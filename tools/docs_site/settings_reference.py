"""Generates the reference of settings of masters and workers: every variable with type, default and text."""

from __future__ import annotations

import re
import types
import typing
from typing import Any

import typer
from pydantic_settings import BaseSettings

from docs_site.cli_reference import options
from docs_site.tables import cell

_HEAD = """\
# Settings of masters and workers

A master takes each setting from its option, where there is one, then from the variable, then the default.
Workers are started by `elastane run`, which sets what they need; what else is set in its shell they inherit.
"""


def settings() -> dict[str, type[BaseSettings]]:
    """Return the classes of settings by their heading on the page."""
    from elastane.runtime.environment import WorkerEnvironment
    from elastane_master.jobs.limits import Limits
    from elastane_master.security.settings import SecuritySettings
    from elastane_master.settings import MasterSettings

    return {
        "The master": MasterSettings,
        "The master's protection": SecuritySettings,
        "The master's limits": Limits,
        "Workers": WorkerEnvironment,
    }


def texts() -> dict[str, str]:
    """Return the help texts of `elastane master`'s options by name, without the defaults."""
    from elastane_master.cli import app

    found = options(typer.main.get_command(app))
    return {str(option.name): re.sub(r" \[[^]]*\]$", "", option.help or "") for option in found}


def render() -> str:
    """Return the page in Markdown."""
    parts, said = [_HEAD], texts()
    limits = set(settings()["The master's limits"].model_fields)
    for title, kind in settings().items():
        rows = ["| variable | | type | default |", "|---|---|---|---|"]
        prefix = kind.model_config.get("env_prefix", "")
        for name, field in kind.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseSettings):
                continue  # listed under a heading of its own
            if title == "The master" and name in limits:
                continue
            text = field.description or (said.get(name, "") if title.startswith("The master") else "")
            default = "" if field.default_factory is not None else _shown(field.default)
            rows.append(
                f"| `{prefix}{name.upper()}` | {cell(text)} | {cell(_type(field.annotation))} | {default} |"
            )
        parts.append("\n".join([f"## {title}\n", *rows, ""]))
    return "\n".join(parts)


def _shown(value: Any) -> str:
    value = getattr(value, "value", value)
    return "" if value is None or value == "" else f"`{value}`"


def _type(annotation: Any) -> str:
    """Describe a type in words: "path", "number", or the choices of a Literal."""
    if typing.get_origin(annotation) is typing.Literal:
        return " / ".join(str(value) for value in typing.get_args(annotation) if value)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " / ".join(_type(one) for one in typing.get_args(annotation) if one is not type(None))
    words = {"Path": "path", "str": "text", "int": "whole number", "float": "number", "bool": "true / false"}
    name = getattr(annotation, "__name__", str(annotation))
    if hasattr(annotation, "__members__"):
        return " / ".join(member.value for member in annotation)
    return words.get(name, name)
