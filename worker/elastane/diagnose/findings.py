"""Output of `elastane doctor`: findings, and the report that an examined script leaves behind.

The script is examined in a separate process and may end it at any moment, so `Book` atomically rewrites the
report at each addition: findings before a crash are not lost.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from elastane_common.atomic_writes import write_atomically


class Severity(enum.StrEnum):
    """Importance of a finding; the first two make `elastane doctor` exit with 1.

    REFUSED: training would end with an error. DIFFERS: the bits may differ from those of stock DDP. COSTS:
    correct, but slower than necessary. NOTE: good to know, or true only elsewhere (on a GPU).
    """

    REFUSED = "refused"
    DIFFERS = "differs"
    COSTS = "costs"
    NOTE = "note"


_ORDER: Final = list(Severity)


#: Error codes of findings in a script, by their kind; findings about the machine have one code each.
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
    "saved weights": "ELA514",
    "break": "ELA515",
    "between epochs": "ELA516",
    "distributed": "ELA517",
    "seeds": "ELA518",
    "setup": "ELA519",
    "loop body": "ELA520",
    "module state": "ELA536",
    "pipeline": "ELA537",
    "parameter servers": "ELA538",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding.

    kind: a word for programs ("generator", "operator", ...). code: its page in docs/errors.md. line,
    variable: in the script's source; 0 and "" for findings from elsewhere.
    """

    severity: Severity
    kind: str
    what: str
    where: str = ""
    todo: str = ""
    code: str = ""
    line: int = 0
    variable: str = ""


class Timing(msgspec.Struct, kw_only=True):
    """Seconds of the timed steps, and the digest of the first step's gradients."""

    seconds: list[float] = []
    digest: str = ""


class Report(msgspec.Struct, kw_only=True):
    """Result of one examination. stage: the last one begun; "complete" at its end."""

    stage: str = "started"
    findings: list[Finding] = []
    facts: dict[str, str] = {}
    timing: Timing = msgspec.field(default_factory=Timing)


_decoder: Final = msgspec.json.Decoder(Report)


COMPLETE: Final = "complete"


class Book:
    """The report of this process, kept on disk. Equal findings are recorded once."""

    def __init__(self, path: Path | None) -> None:
        self.report = Report(findings=[], facts={})
        self._path = path
        self._write()

    def add(self, severity: Severity, kind: str, what: str, *, where: str = "", todo: str = "") -> None:
        """Record a finding."""
        finding = Finding(
            severity=severity, kind=kind, what=what, where=where, todo=todo, code=CODES.get(kind, "")
        )
        if finding not in self.report.findings:
            self.report.findings.append(finding)
            self._write()

    def fact(self, name: str, value: object) -> None:
        """Record a fact, without a judgement."""
        self.report.facts[name] = str(value)
        self._write()

    def stage(self, name: str) -> None:
        """Record the stage that begins; it remains in the report if the process ends."""
        self.report.stage = name
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        write_atomically(self._path, msgspec.json.encode(self.report))


def read_report(path: Path) -> Report | None:
    """Read the report left at `path`; None if there is none."""
    try:
        return _decoder.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by severity, the worst first, otherwise in the order of discovery."""
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))


def is_fault(findings: Iterable[Finding]) -> bool:
    """True if something must be changed before training."""
    return any(finding.severity in (Severity.REFUSED, Severity.DIFFERS) for finding in findings)
