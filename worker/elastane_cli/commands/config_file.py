"""Options from a file: `elastane.toml`, or the table `[tool.elastane]` of `pyproject.toml`.

Each table has the name of a command and gives defaults for its options, by their long names. `[connection]`
has the options that precede the command, and `master` for every command that takes it. An option of the
command line has precedence over its variable, and the variable over the file (click's `default_map`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

FILE: Final = "elastane.toml"
PROJECT_FILE: Final = "pyproject.toml"
VARIABLE: Final = "ELASTANE_CONFIG"
"""Names the file; empty: none is read."""
CONNECTION: Final = "connection"
MASTER: Final = "master"


class ConfigFileError(Exception):
    """The file cannot be used; the text names the file, the table and the key."""


class ConfigFile(NamedTuple):
    """A file that was found, with its tables; without a path: there is none."""

    path: Path | None = None
    tables: Mapping[str, Any] = MappingProxyType({})

    def check_tables(self, commands: Sequence[str]) -> None:
        """Raise ConfigFileError for a table of no command."""
        for name, table in self.tables.items():
            if name != CONNECTION and name not in commands:
                raise self._error(_unknown(f"[{name}]", "command", name, [*commands, CONNECTION]))
            if not isinstance(table, Mapping):
                raise self._error(f"{name} stands outside a table: write it below the name of its command")

    def defaults(self, name: str, command: Any) -> dict[str, Any]:
        """Return the values for a command as its `default_map`. Raises ConfigFileError for a key it lacks.

        command: as `catalogue.load` returns it.
        """
        connection = self.tables.get(CONNECTION, {})
        given = self._values(f"[{name}]", command, self.tables.get(name, {}))
        option = next((one for one in settable(command) if one.name == MASTER), None)
        if MASTER in connection and option is not None:
            value = self._value(f"[{CONNECTION}] {MASTER}", option, connection[MASTER])
            given.setdefault(MASTER, value)
        return given

    def root_defaults(self, root: Any) -> dict[str, Any]:
        """Return the values for the options that precede the command. root: the application's group."""
        table = {key: value for key, value in self.tables.get(CONNECTION, {}).items() if key != MASTER}
        return self._values(f"[{CONNECTION}]", root, table, also=[MASTER])

    def _values(
        self, where: str, command: Any, table: Mapping[str, Any], also: Sequence[str] = ()
    ) -> dict[str, Any]:
        options = {
            flag[2:]: option for option in settable(command) for flag in option.opts if flag.startswith("--")
        }
        actions = getattr(command, "commands", {}) if not also else {}
        found: dict[str, Any] = {}
        for key, value in table.items():
            name = key.replace("_", "-")
            if key in actions and isinstance(value, Mapping):
                found[key] = self._values(f"{where[:-1]}.{key}]", actions[key], value)
            elif name in options:
                option = options[name]
                found[option.name] = self._value(f"{where} {key}", option, value)
            else:
                raise self._error(_unknown(f"{where} {key}", "option", name, [*options, *actions, *also]))
        return found

    def _value(self, where: str, option: Any, value: Any) -> Any:
        if option.is_flag != isinstance(value, bool):
            raise self._error(f"{where}: {'true or false' if option.is_flag else 'a value'} is needed")
        if isinstance(value, list) != option.multiple or isinstance(value, Mapping):
            raise self._error(f"{where}: {'a list of values' if option.multiple else 'one value'} is needed")
        if option.is_flag:
            return value
        return tuple(map(str, value)) if option.multiple else str(value)

    def _error(self, text: str) -> ConfigFileError:
        return ConfigFileError(f"{self.path}: {text}")


def find_config(folder: Path, environment: Mapping[str, str]) -> ConfigFile:
    """Read the file that $ELASTANE_CONFIG names, or the nearest one of `folder` and the folders above it.

    Raises ConfigFileError if it cannot be read.
    """
    if (named := environment.get(VARIABLE)) is not None:
        return _read(Path(named), []) if named else ConfigFile()
    for place in (folder, *folder.parents):
        if (place / FILE).is_file():
            return _read(place / FILE, [])
        if (place / PROJECT_FILE).is_file():
            found = _read(place / PROJECT_FILE, ["tool", "elastane"])
            if found.path is not None:
                return found
    return ConfigFile()


def _read(path: Path, keys: Sequence[str]) -> ConfigFile:
    import tomllib

    try:
        tables: Any = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigFileError(f"{path}: {os.strerror(error.errno or 0)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if keys:  # a project's file that is not ours to judge
            return ConfigFile()
        raise ConfigFileError(f"{path}: {error}") from error
    for key in keys:
        tables = tables.get(key) if isinstance(tables, Mapping) else None
    return ConfigFile(path, tables) if isinstance(tables, Mapping) else ConfigFile()


def settable(command: Any) -> Iterator[Any]:
    """Yield the options of a command that a file may set: none that prints something and exits."""
    for option in command.params:
        if option.param_type_name == "option" and option.expose_value and not option.is_eager:
            yield option


def _unknown(where: str, kind: str, name: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f"{where}: no such {kind}" + (f"; did you mean {near[0]!r}?" if near else "")
