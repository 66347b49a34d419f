"""What `elastane doctor` says: findings, and the report that an examined script leaves behind.

The script is examined in a process of its own and may end it at any moment, so `Book` writes the report
anew, in one rename, whenever something is added to it: what was found before a crash is not lost.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec


class Severity(enum.StrEnum):
    """How much a finding matters; the first two make `elastane doctor` exit with 1.

    REFUSED: training would end with an error. DIFFERS: the bits may be others than those of stock DDP.
    COSTS: right, but slower than it need be. NOTE: good to know, or true only elsewhere (on a GPU).
    """

    REFUSED = "refused"
    DIFFERS = "differs"
    COSTS = "costs"
    NOTE = "note"


_ORDER: Final = list(Severity)


#: The codes of what is found in a script, by their kind; what is found of a machine has one each.
CODES: Final = {
    "generator": "ELA501",
    "replay": "ELA502",
    "operator": "ELA503",
    "step": "ELA504",
    "parameters": "ELA505",
    "random numbers": "ELA506",
    "flags": "ELA507",
    "data": "ELA508",
    "prepare": "ELA509",
    "state": "ELA510",
    "d2": "ELA511",
    "loop variable": "ELA512",
    "after the step": "ELA513",
    "epoch variable": "ELA514",
    "break": "ELA515",
    "between epochs": "ELA516",
    "distributed": "ELA517",
    "seeds": "ELA518",
    "setup": "ELA519",
    "loop body": "ELA520",
    "module state": "ELA536",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was found. kind: a word for programs ("generator", "operator", ...). code: its page in
    docs/errors.md. line, variable: in the script's source; 0 and "" for what was not read there."""

    severity: Severity
    kind: str
    what: str
    where: str = ""
    todo: str = ""
    code: str = ""
    line: int = 0
    variable: str = ""


class Timing(msgspec.Struct, kw_only=True):
    """Seconds of the steps that were timed, and the digest of the first step's gradients."""

    seconds: list[float] = []
    digest: str = ""


class Report(msgspec.Struct, kw_only=True):
    """What one examination left behind. stage: the last one that was begun; "complete" at its end."""

    stage: str = "started"
    findings: list[Finding] = []
    facts: dict[str, str] = {}
    timing: Timing = msgspec.field(default_factory=Timing)


COMPLETE: Final = "complete"


class Book:
    """The report of this process, kept on disk. Findings of equal kind, place and text count once."""

    def __init__(self, path: Path | None) -> None:
        self.report = Report(findings=[], facts={})
        self._path = path
        self._write()

    def add(self, severity: Severity, kind: str, what: str, *, where: str = "", todo: str = "") -> None:
        """Write a finding down."""
        finding = Finding(
            severity=severity, kind=kind, what=what, where=where, todo=todo, code=CODES.get(kind, "")
        )
        if finding not in self.report.findings:
            self.report.findings.append(finding)
            self._write()

    def fact(self, name: str, value: object) -> None:
        """Write down what is so, without a judgement."""
        self.report.facts[name] = str(value)
        self._write()

    def stage(self, name: str) -> None:
        """What is done from now on: if the process ends, it ended there."""
        self.report.stage = name
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        # The process id: data workers are forked from here, and must not write over each other.
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(self.report))
        draft.replace(self._path)


def read_report(path: Path) -> Report | None:
    """The report a process left at `path`; None if it never got so far."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, otherwise in the order they were found."""
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))


def is_fault(findings: Iterable[Finding]) -> bool:
    """Whether something must be changed before training."""
    return any(finding.severity in (Severity.REFUSED, Severity.DIFFERS) for finding in findings)
