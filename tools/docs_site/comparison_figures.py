"""Generates the table of figures in docs/comparison.md from the latest results in docs/benchmarks.md."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from docs_site.paths import DOCS

PAGE: Final = DOCS / "comparison.md"
MEASURED: Final = DOCS / "benchmarks.md"
BEGIN: Final = "<!-- Written by `make docs-pages` out of docs/benchmarks.md. -->\n"
END: Final = "<!-- End of what is written. -->\n"


class Wanted(NamedTuple):
    """A row of the table: the reader's question, the benchmark, and the case as named in its table."""

    question: str
    benchmark: str
    case: str


WANTED: Final = (
    Wanted("a worker is killed: pause of the others", "recovery",
           "small: worker killed: stall, beside torchft"),
    Wanted("the same, torchft with a heartbeat of 1 s", "recovery",
           "small: worker killed: stall, beside torchft 1 s"),
    Wanted("a worker joins: pause of the others, small model", "recovery",
           "small: newcomer: the others' stall, beside torchft"),
    Wanted("the same, model of 25 M parameters", "recovery",
           "25m: newcomer: the others' stall, beside torchft"),
    Wanted("time per step, MLP, 2 workers", "steady_step", "MLP, batch 32: 2 workers, P = N"),
    Wanted("the same", "steady_step", "MLP, batch 32: 2 workers, P = N, beside torchft"),
    Wanted("time per step, GPT of 25 M parameters, 2 workers", "steady_step",
           "GPT 25 M, batch 2: 2 workers, P = N"),
    Wanted("from start to first step, 2 workers", "startup", "run to first step, 2 workers"),
    Wanted("leasing and reporting tasks, one client; Elastane's are durable, DLRover's in memory", "dispatch",
           "1 client: one task a request"),
    Wanted("restoring a queue of 10^9 samples", "data_scale", "10^9 samples: restore"),
)  # fmt: skip


def table(measured: str) -> str:
    """Return the table. measured: text of docs/benchmarks.md. Raises KeyError for an unknown case."""
    lines = ["| | Elastane | peer | made by |", "|---|---|---|---|"]
    for question, benchmark, case in WANTED:
        section = re.search(rf"^## {benchmark}\n(.*?)(?=^## |\Z)", measured, re.MULTILINE | re.DOTALL)
        row = re.search(rf"^\| {re.escape(case)} \|(.*)$", section[1] if section else "", re.MULTILINE)
        if row is None:
            raise KeyError(f"docs/benchmarks.md has no case {case!r} of {benchmark}")
        ours, peer = (cell.strip() for cell in row[1].split("|")[:2])
        lines.append(f"| {question} | {ours} | {peer} | `make bench ONLY={benchmark}` |")
    return "\n".join(lines) + "\n"


def render(page: str, measured: str) -> str:
    """Return the page with the current table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(measured)}\n{END}{after}"
