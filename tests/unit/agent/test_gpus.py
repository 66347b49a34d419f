"""A GPU of its own for each worker of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastane_agent.supervisor.gpus import SLOT, gpu_variables, gpu_variables_of_slot
from elastane_common.gpus import VISIBLE, visible_gpus


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """The devices of a machine with four GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


def test_workers_get_one_each_and_share_only_when_all_are_taken(devices: Path) -> None:
    taken: list[str] = []
    for _ in range(6):
        taken.append(gpu_variables({}, taken, devices)[VISIBLE])
    assert taken == ["0", "1", "2", "3", "0", "1"]


def test_the_gpu_of_a_worker_that_ended_is_given_again(devices: Path) -> None:
    assert gpu_variables({}, ["0", "1", "3"], devices) == {VISIBLE: "2"}


@pytest.mark.parametrize(
    ("named", "found"),
    [("2,3", ["2", "3"]), ("GPU-a, GPU-b", ["GPU-a", "GPU-b"]), ("", []), ("-1", []), ("1", ["1"])],
)
def test_the_users_choice_is_what_there_is_to_choose_from(
    devices: Path, named: str, found: list[str]
) -> None:
    environment = {VISIBLE: named}
    assert visible_gpus(environment, devices) == found
    chosen = gpu_variables(environment, found[:1], devices)
    assert chosen == ({VISIBLE: found[1]} if len(found) > 1 else {})


def test_without_a_choice_nothing_is_set(tmp_path: Path) -> None:
    assert gpu_variables({}, [], tmp_path) == {}
    (tmp_path / "nvidia0").touch()
    assert gpu_variables({}, ["0"], tmp_path) == {}


def test_on_a_remote_host_the_slot_decides(devices: Path) -> None:
    slots = [gpu_variables_of_slot({SLOT: str(slot)}, devices).get(VISIBLE) for slot in (0, 3, 4)]
    assert slots == ["0", "3", "0"]
    assert gpu_variables_of_slot({SLOT: "1", VISIBLE: "2,3"}, devices) == {VISIBLE: "3"}
    assert gpu_variables_of_slot({}, devices) == {}
    assert gpu_variables_of_slot({SLOT: "x"}, devices) == {}
