"""Hundreds of random scripts under stock DDP and under churn, compared bit for bit.

    make fuzz-parity                     200 cases, or as many as fit into FUZZ_MINUTES
    make fuzz-parity SEED=17             one case again, with everything said
    make fuzz-parity CASES=1000 FIRST=5000

Every case and its churn are drawn from its seed alone (`cases`). Results are written to a file of JSON lines,
and cases that it has as equal are not run again, so that an interrupted run continues where it was. Delete
the file, or give another (RESULTS=...), to start afresh.

Exit codes: 0 all equal, 1 a case differs or failed, 2 usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from elastane_cli.verify.run import REPEAT_CHECK_VARIABLE, run_verify
from elastane_common.errors import ElastaneError
from elastane_common.processes.child import ChildProcess
from integration.forkserver import fork_servers
from parity.cases import Case, random_case

SCRIPT = Path(__file__).with_name("train_case.py")
CASE_SECONDS_MAX = 120.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of a case. verdict: "equal", "differs", "not deterministic by itself" or "failed"."""

    seed: int
    verdict: str
    seconds: float
    said: str = ""
    path: str = ""

    def line(self, case: Case) -> str:
        return json.dumps({**dataclasses.asdict(self), "case": dataclasses.asdict(case)})


def run_case(
    seed: int,
    folder: Path,
    launch: Callable[..., ChildProcess] = ChildProcess,
    *,
    case: Case | None = None,
) -> Outcome:
    """Verify the case of a seed, with at least one kill, in `folder`.

    case: a different case to run under the churn of this seed.
    """
    case = case or random_case(seed)
    started = time.monotonic()
    try:
        result = run_verify(
            folder,
            [str(SCRIPT), *case.arguments()],
            ests=case.ests,
            runs=1,
            kills=1 + seed % 2,
            seed=seed,
            timeout_seconds=CASE_SECONDS_MAX,
            environment={REPEAT_CHECK_VARIABLE: "1"},
            launch=launch,
        )
    except ElastaneError as error:
        said = "\n".join(str(part) for part in error.args)
        return Outcome(seed, "failed", time.monotonic() - started, said)
    path = "->".join(str(number) for number in result.runs[0].plan.path)
    said = "" if result.equal else json.dumps(result.as_json(), indent=1)
    return Outcome(seed, result.verdict.value, time.monotonic() - started, said, path)


def equal_before(results: Path) -> set[int]:
    """Return the seeds that a results file has as equal; a line truncated by an interruption is ignored."""
    found: dict[int, str] = {}
    for line in results.read_text().splitlines() if results.exists() else ():
        try:
            entry: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[int(entry["seed"])] = str(entry["verdict"])
    return {seed for seed, verdict in found.items() if verdict == "equal"}


def run_cases(
    seeds: Iterable[int], results: Path | None, *, deadline: float, say: Callable[[str], None]
) -> int:
    """Run cases until the deadline (monotonic seconds); return the number of those that were not equal."""
    done = equal_before(results) if results is not None else set()
    wanted = list(seeds)
    todo = [seed for seed in wanted if seed not in done]
    if len(todo) < len(wanted):
        say(f"{len(wanted) - len(todo)} cases are known to be equal from {results}")
    faults: list[int] = []
    with fork_servers() as servers:
        for number, seed in enumerate(todo):
            if time.monotonic() > deadline:
                say(f"out of time: {len(todo) - number} cases are left; run again to go on")
                break
            case = random_case(seed)
            with tempfile.TemporaryDirectory(prefix="elastane-fuzz-") as folder:
                outcome = run_case(seed, Path(folder), servers.launch)
            what = f"{case.ests} ESTs {outcome.path or '-'}, {case.model}, {case.precision}, {case.sampler}"
            say(f"seed {seed}: {outcome.verdict} ({what}, {outcome.seconds:.1f} s)")
            if results is not None:
                results.parent.mkdir(parents=True, exist_ok=True)
                with results.open("a") as file:
                    file.write(outcome.line(case) + "\n")
            if outcome.verdict != "equal":
                faults.append(seed)
                say(outcome.said)
                say(f"again: make fuzz-parity SEED={seed}\n{verify_command(seed)}")
    if faults:
        say(f"not equal: seeds {', '.join(map(str, faults))}")
    return len(faults)


def verify_command(seed: int, case: Case | None = None) -> str:
    """Return the `elastane verify` command that runs the same case in fresh processes."""
    case = case or random_case(seed)
    script = shlex.join([str(SCRIPT), *case.arguments()])
    return f"   or: elastane verify --ests {case.ests} --seed {seed} --kills {1 + seed % 2} {script}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="this case alone, whatever is known of it")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--results", type=Path, default=Path(".elastane/fuzz-parity.jsonl"))
    args = parser.parse_args(arguments)
    if args.cases < 1 or args.minutes <= 0:
        parser.error("--cases and --minutes must be positive")
    deadline = time.monotonic() + 60 * args.minutes

    def say(text: str) -> None:
        print(text, flush=True)

    if args.seed is not None:
        return min(1, run_cases([args.seed], None, deadline=deadline, say=say))
    seeds = range(args.first, args.first + args.cases)
    return min(1, run_cases(seeds, args.results, deadline=deadline, say=say))


if __name__ == "__main__":
    sys.exit(main())
