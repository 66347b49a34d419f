"""Scripts of other training libraries beside their own DDP runs: lines changed, and the sha256 of both.

    make frameworks-table               each script on N = 3, the changed one under two kills: three minutes
    make frameworks-table ONLY=trainer  some of them, by a part of the name

The original is started by torchrun with 3 processes; the changed script runs on workers that come, go and are
killed. Exit codes: 0 all equal, 1 one is not, 2 no script has that name.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from elastane_cli.verify.run import VerifyResult
from frameworks import test_accelerate, test_fabric, test_lightning, test_transformers
from frameworks.beside import run_beside


class Case(NamedTuple):
    """A script. changes: lines before and after, each of which occurs once."""

    words: str
    script: str
    changes: Mapping[str, str]
    arguments: tuple[str, ...] = ()


CASES: Final = (
    Case(
        "Trainer, a tiny BERT from its config", "trainer.py", test_transformers.CHANGES, ("--accumulate", "2")
    ),
    Case("Accelerate, as nlp_example.py", "nlp_example.py", test_accelerate.CHANGES, ("--accumulate", "2")),
    Case("Accelerate, as cv_example.py", "cv_example.py", test_accelerate.CHANGES),
    Case("Lightning, a classifier of images", "lightning_digits.py", test_lightning.CHANGES),
    Case("Fabric, as its image classifier", "fabric_digits.py", test_fabric.CHANGES),
)
_HEAD: Final = """\
| script | lines changed | steps | killed | | its own DDP run | under kills |
|---|---|---|---|---|---|---|"""


def rows(case: Case, result: VerifyResult) -> list[str]:
    """Return the table's rows of one script: a row for each part of the state."""
    [run] = result.runs
    found = {row.name: row for row in run.comparison.rows}
    parts = [found[name] for name in ("weights", "optimizer", "buffers") if name in found]
    lines = []
    for number, row in enumerate(parts):
        first = [case.words, str(len(case.changes)), str(result.steps), str(len(run.plan.deaths))]
        cells = [*(first if number == 0 else [""] * len(first)), row.name, row.reference, row.found]
        lines.append(f"| {' | '.join(cells)} |".replace("|  ", "| "))
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="a part of the script's name")
    only = parser.parse_args(arguments).only
    chosen = [case for case in CASES if only in case.script]
    if not chosen:
        parser.error(f"--only {only}: none of {', '.join(case.script for case in CASES)}")
    os.environ["ACCELERATE_USE_CPU"] = "true"
    print(_HEAD, flush=True)
    all_equal = True
    for case in chosen:
        with tempfile.TemporaryDirectory(prefix="elastane-frameworks-") as folder:
            result = run_beside(case.script, case.changes, Path(folder), *case.arguments)
        print("\n".join(rows(case, result)), flush=True)
        if not result.equal:
            all_equal = False
            print(f"{case.script} differs: {result.as_json()}", file=sys.stderr)
    return 0 if all_equal else 1


if __name__ == "__main__":
    sys.exit(main())
