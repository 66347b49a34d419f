"""What containers are created with: the golden file is the whole of it, and what weakens it is refused.

`GOLDEN=write pytest tests/unit/runner/test_container_plan.py` writes the golden file; read the difference.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from elastane_runner.container_plan import (
    ContainerOptions,
    check_options,
    container_arguments,
    image_reference,
    options_of,
)
from elastane_runner.engine import AttemptPlan, EngineError, RankPlan
from elastane_runner.rank_labels import RANK, RANKS, check_attempt, is_whole, labels, read_labels, returncode

GOLDEN = Path(__file__).parent / "container_golden.json"

PLAN = AttemptPlan(
    run="run-7",
    attempt=2,
    fence=9,
    folder=Path("/srv/code"),
    ranks=(RankPlan(("python", "train.py"), {"RANK": "3", "HOME": "/own"}, 3), RankPlan(("true",), {}, 1)),
    log_cap_bytes=4096,
)
OPTIONS = ContainerOptions(
    image="digits:3",
    memory_bytes=2**30,
    cpus=1.5,
    network="training",
    read_folders=(Path("/data"),),
    write_folders=(Path("/models"),),
)


def test_the_arguments_are_those_of_the_golden_file() -> None:
    made = [
        container_arguments(PLAN, rank, OPTIONS, runner="runner-1", image="sha256:ab") for rank in PLAN.ranks
    ]
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.write_text(json.dumps(made, indent=2) + "\n")
    assert made == json.loads(GOLDEN.read_text())


def test_without_limits_none_is_set_and_the_hosts_network_is_not_joined() -> None:
    options = ContainerOptions(image="i", network="host", allows_host_network=True)
    check_options(options)
    made = container_arguments(PLAN, PLAN.ranks[1], options, runner="r")
    assert {"mem_limit", "memswap_limit", "nano_cpus"}.isdisjoint(made)
    assert (made["image"], made["network_mode"]) == ("i", "host")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": ""}, "no image"),
        ({"user": "0"}, "cannot run as '0'"),
        ({"user": "0:0"}, "cannot run as"),
        ({"user": "root"}, "cannot run as"),
        ({"user": ""}, "cannot run as"),
        ({"network": "host"}, "not allowed"),
        ({"network": "container:x"}, "not the name of a network"),
        ({"network": ""}, "not the name of a network"),
        ({"memory_bytes": 1}, "too few"),
        ({"cpus": 0.0}, "too few"),
        ({"cpus": float("nan")}, "too few"),
        ({"processes_max": 0}, "processes_max is 0"),
        ({"processes_max": -1}, "processes_max is -1"),
        ({"temporary_bytes": 0}, "temporary_bytes"),
        ({"shared_memory_bytes": -1}, "shared_memory_bytes"),
        ({"write_folders": (Path("/"),)}, "cannot be shown"),
        ({"write_folders": (Path("/a/../etc"),)}, "cannot be shown"),
        ({"read_folders": (Path("data"),)}, "cannot be shown"),
        ({"read_folders": (Path("/a:/etc"),)}, "cannot be shown"),
    ],
)
def test_options_that_weaken_or_confuse_are_refused(change: dict[str, object], words: str) -> None:
    check_options(OPTIONS)
    with pytest.raises(EngineError, match=words):
        check_options(replace(OPTIONS, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": "../run"}, "cannot name"),
        ({"run": ""}, "cannot name"),
        ({"attempt": 0}, "attempt 0"),
        ({"ranks": ()}, "0 ranks"),
        ({"log_cap_bytes": 7}, "too small"),
        ({"ranks": (RankPlan(()),)}, "empty"),
        ({"ranks": (RankPlan(("true",)), RankPlan(("true",)))}, "same number"),
        ({"ranks": (RankPlan(("a\0b",)),)}, "NUL"),
        ({"ranks": (RankPlan(("a",), {"A": "\0"}),)}, "NUL"),
        ({"ranks": (RankPlan(("a",), {"A=B": "1"}),)}, "'='"),
    ],
)
def test_attempts_that_cannot_be_started_are_refused(change: dict[str, object], words: str) -> None:
    check_attempt(PLAN)
    with pytest.raises(EngineError, match=words):
        check_attempt(replace(PLAN, **change))  # type: ignore[arg-type]


def test_labels_are_read_as_they_were_written_and_others_are_not_ours() -> None:
    written = labels("runner-1", PLAN, 3)
    read = read_labels(written)
    assert read is not None
    assert (read.run, read.attempt, read.rank, read.ranks) == ("run-7", 2, 3, (3, 1))
    assert (read.fence, read.log_cap_bytes) == (9, 4096)
    for name in written.keys() - {"io.elastane.runner"}:
        assert read_labels({key: value for key, value in written.items() if key != name}) is None
        assert read_labels({**written, name: "../x"}) is None
    assert read_labels({**written, RANK: "4"}) is None
    assert read_labels({**written, RANKS: ""}) is None


def test_an_attempt_is_whole_once_all_of_it_was_started() -> None:
    assert is_whole([1, 3], [3, 1]) and not is_whole([1, 3], [3])


@pytest.mark.parametrize(
    ("exit_code", "code"),
    [(0, 0), (1, 1), (127, 127), (128, 128), (137, -9), (143, -15), (192, -64), (193, 193), (255, 255)],
)
def test_codes_of_signals_are_as_those_of_processes(exit_code: int, code: int) -> None:
    assert returncode(exit_code) == code


def test_an_attempt_has_its_own_image_and_the_limits_of_all_its_slots() -> None:
    own = options_of(replace(PLAN, image="own:1", slots_per_rank=3), OPTIONS)
    assert (own.image, own.memory_bytes, own.cpus) == ("own:1", 3 * 2**30, 4.5)
    assert options_of(PLAN, OPTIONS) == OPTIONS
    free = options_of(replace(PLAN, slots_per_rank=3), ContainerOptions(image="i"))
    assert free == ContainerOptions(image="i")


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("digits:3", "digits:3"),
        ("digits:3@sha256:ab", "digits@sha256:ab"),
        ("registry:5000/team/digits:3@sha256:ab", "registry:5000/team/digits@sha256:ab"),
        ("registry:5000/digits@sha256:ab", "registry:5000/digits@sha256:ab"),
    ],
)
def test_an_image_with_a_digest_is_named_without_its_tag(name: str, reference: str) -> None:
    assert image_reference(name) == reference
