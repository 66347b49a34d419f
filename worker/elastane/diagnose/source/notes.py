"""Findings of a script's source, collected by line."""

from __future__ import annotations

import ast

from elastane.diagnose.findings import CODES, Finding, Severity


class Notes:
    """Findings in one file; equal ones are recorded once."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.findings: list[Finding] = []

    def add(
        self, severity: Severity, kind: str, at: ast.AST | int, what: str, todo: str, *, variable: str = ""
    ) -> None:
        """Record a finding. at: the node, or the line."""
        line = at if isinstance(at, int) else getattr(at, "lineno", 0)
        finding = Finding(
            severity=severity,
            kind=kind,
            what=what,
            where=f"{self._file}:{line}",
            todo=todo,
            code=CODES[kind],
            line=line,
            variable=variable,
        )
        if finding not in self.findings:
            self.findings.append(finding)
