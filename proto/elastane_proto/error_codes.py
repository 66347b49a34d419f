"""Error codes with cause and remedy, shared by master, workers, commands and docs/errors.md.

The texts are in error_codes.toml beside this file and are read on demand. An error class names its code in
the attribute `code`; a refusal over gRPC has the code ELA1 followed by the two digits of its ErrorReason, so
that callers in any language can identify it. A code is never reused, not even after its error is removed.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Final, NamedTuple

from elastane_proto.v1 import errors_pb2

GROUPS: Final = {
    "ELA1": "Refused by a master",
    "ELA2": "The master and its store",
    "ELA3": "The training script, its data and its state",
    "ELA4": "Commands and agent",
    "ELA5": "Findings of elastane doctor",
}
"""Error groups by the first digit of the code, which says where the error comes from."""


class Entry(NamedTuple):
    """One error code.

    names: its names in the sources and on the wire (classes, reasons, kinds of findings).
    """

    code: str
    names: tuple[str, ...]
    title: str
    cause: str
    todo: str

    @property
    def group(self) -> str:
        """Heading of the code's group."""
        return GROUPS[self.code[:4]]


def wire_code(reason: str) -> str:
    """Return the code of an ErrorReason given by its short name ("not_found"); ELA100 for unknown names."""
    name = f"ERROR_REASON_{reason.upper()}"
    value = errors_pb2.ErrorReason.DESCRIPTOR.values_by_name.get(name)
    return f"ELA1{value.number if value is not None else 0:02}"


def entries() -> dict[str, Entry]:
    """Return all codes in order. Called by `elastane errors` and the generator of docs/errors.md."""
    text = resources.files("elastane_proto").joinpath("error_codes.toml").read_text(encoding="utf-8")
    return {
        code: Entry(
            code,
            tuple(entry["names"]),
            entry["title"],
            " ".join(entry["cause"].split()),
            " ".join(entry["todo"].split()),
        )
        for code, entry in sorted(tomllib.loads(text).items())
    }


def find(words: str) -> list[Entry]:
    """Find codes a user may mean: by code, by name, else by words of the title. Case does not matter."""
    wanted = words.strip().lower()
    known = entries()
    if (entry := known.get(wanted.upper())) is not None:
        return [entry]
    named = [entry for entry in known.values() if wanted in (name.lower() for name in entry.names)]
    return named or [entry for entry in known.values() if wanted in entry.title.lower()]
