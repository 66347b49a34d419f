"""A sample of `make fuzz-parity`, and tests of its parts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from integration.forkserver import ForkServers
from parity import fuzz
from parity.cases import Case, Habits, random_case
from slow import further, slow

#: Chosen for variety: see `test_the_sample_is_varied`.
SAMPLE = (2, 7, 25, 50, 52, 59)
FURTHER = (2, 25, 59)
"""The larger ones of these: each part is in the gallery, or in a smaller one."""
ONCE_FAILED = (
    6167,  # donors whose optimizers had used their parameters in another order sent stripes that did not fit
)
#: Cases with habits, which are features beyond the plain loop.
ONCE_FAILED_BESIDES = (
    7002,  # a leader that was drained at an epoch's end: the others must begin anew, and verify gave up
)


@slow
@pytest.mark.parametrize(
    "seed",
    [
        *(pytest.param(seed, marks=further if seed in FURTHER else ()) for seed in SAMPLE),
        *(*ONCE_FAILED, *ONCE_FAILED_BESIDES),
    ],
)
def test_random_script_has_the_bits_of_stock_ddp(servers: ForkServers, tmp_path: Path, seed: int) -> None:
    case = random_case(seed)
    if seed in ONCE_FAILED:
        case = dataclasses.replace(case, habits=Habits())  # found before there were habits
    outcome = fuzz.run_case(seed, tmp_path, servers.launch, case=case)
    assert outcome.verdict == "equal", f"{case}\n{outcome.said}\n{fuzz.verify_command(seed, case)}"


def test_a_case_is_its_seeds_and_survives_the_command_line() -> None:
    for seed in range(50):
        case = random_case(seed)
        assert case == random_case(seed)
        assert Case.parse(*case.arguments()) == case
    assert len({random_case(seed) for seed in range(200)}) == 200


def test_two_hundred_cases_have_every_choice() -> None:
    cases = [random_case(seed) for seed in range(200)]
    seen = {
        field.name: {getattr(case, field.name) for case in cases}
        for field in dataclasses.fields(Case)
        if field.name not in ("size",)
    }
    seen |= {
        field.name: {getattr(case.habits, field.name) for case in cases}
        for field in dataclasses.fields(Habits)
    }
    assert all(len(values) > 1 for values in seen.values()), seen
    assert len(seen["model"]) == 6
    assert len(seen["sampler"]) == 9
    assert seen["ests"] == {2, 3, 4, 5}
    assert seen["validation"] == {"none", "all", "leader", "both"}
    assert seen["seeded"] == {"none", "prepare", "epoch"}
    assert seen["copied"] == {"none", "kept", "teacher"}


def test_the_sample_is_varied() -> None:
    cases = [random_case(seed) for seed in SAMPLE]
    for name in ("model", "sampler", "optimizer"):
        assert len({getattr(case, name) for case in cases}) == len(SAMPLE), name
    assert {case.ests for case in cases} == {2, 3, 4, 5}
    for name in ("find_unused", "static_graph", "bucket_view", "registered", "average", "persistent"):
        assert {getattr(case, name) for case in cases} == {False, True}, name


def test_results_are_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal cases are not run again; failed cases and those of a truncated line are."""
    results = tmp_path / "results.jsonl"
    verdicts = {3: "differs"}
    ran: list[int] = []

    def run_case(seed: int, *_: object) -> fuzz.Outcome:
        ran.append(seed)
        return fuzz.Outcome(seed, verdicts.get(seed, "equal"), 0.1, "what was found")

    monkeypatch.setattr(fuzz, "run_case", run_case)
    said: list[str] = []

    def run(count: int) -> int:
        return fuzz.run_cases(range(count), results, deadline=float("inf"), say=said.append)

    assert run(4) == 1
    assert ran == [0, 1, 2, 3]
    assert any("make fuzz-parity SEED=3" in text for text in said)
    with results.open("a") as file:
        file.write('{"seed": 4, "verdi')
    results.write_text(results.read_text() + "\n")
    verdicts.clear()
    ran.clear()
    assert run(6) == 0
    assert ran == [3, 4, 5]
    assert [json.loads(line)["seed"] for line in results.read_text().splitlines() if "case" in line] == [
        *range(4), 3, 4, 5,
    ]  # fmt: skip


def test_time_is_kept(tmp_path: Path) -> None:
    said: list[str] = []
    assert fuzz.run_cases(range(5), tmp_path / "r", deadline=0.0, say=said.append) == 0
    assert said == ["out of time: 5 cases are left; run again to go on"]
