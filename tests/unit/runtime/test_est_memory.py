"""For how many ESTs a worker has memory, and which errors say that there was too little."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import Parameter

from elastane.runtime import est_memory
from elastane.runtime.est_memory import (
    LARGEST,
    SETTLING_STEPS,
    EstMemory,
    free_memory_bytes,
    is_out_of_memory,
)
from elastane_common.observe.figures import WorkerFigures
from elastane_proto.v1 import ring_pb2

CPU = torch.device("cpu")


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for what the kernel says of memory."""
    monkeypatch.setattr(est_memory, "_MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(est_memory, "_CGROUP", tmp_path)
    return tmp_path


def limit(folder: Path, limit_bytes: str, used_bytes: int, inactive_bytes: int = 0) -> None:
    (folder / "memory.max").write_text(f"{limit_bytes}\n")
    (folder / "memory.current").write_text(f"{used_bytes}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive_bytes}\n")


def test_half_of_the_free_memory_counts_for_further_ests(system: Path):
    (system / "meminfo").write_text("MemFree: 1 kB\nMemAvailable:     4000 kB\n")
    figures = WorkerFigures()
    params = [Parameter(torch.zeros(25_000)), Parameter(torch.zeros(9), requires_grad=False)]
    memory = EstMemory(CPU, params, figures)
    for _ in range(SETTLING_STEPS):
        memory.applied(ests=3, generation=1)
        assert figures.ests_max == 0, "the copies of this ring are not there yet"
    memory.applied(ests=3, generation=1)
    assert figures.ests_max == 3 + 20  # 100 kB each, and 2,048 kB


def test_a_model_of_a_few_bytes_has_a_number_that_fits_its_message(system: Path):
    (system / "meminfo").write_text(f"MemAvailable: {2**40} kB\n")
    memory = EstMemory(CPU, [Parameter(torch.zeros(1))], figures := WorkerFigures())
    for _ in range(SETTLING_STEPS + 1):
        memory.applied(ests=3, generation=1)
    assert ring_pb2.WorkerFigures(ests_max=figures.ests_max).ests_max == LARGEST


def test_the_control_groups_limit_counts_if_it_is_the_smaller_one(system: Path):
    assert free_memory_bytes(CPU) is None
    (system / "meminfo").write_text("MemAvailable: 1000 kB\n")
    limit(system, "max", 10)
    assert free_memory_bytes(CPU) == 1_024_000
    limit(system, "500000", 400_000, 50_000)
    assert free_memory_bytes(CPU) == 150_000
    limit(system, "500000", 600_000)
    assert free_memory_bytes(CPU) == 0


@pytest.mark.parametrize("text", ["", "MemAvailable:", "MemAvailable: much kB", "a b c"])
def test_figures_that_cannot_be_read_are_unknown_and_end_no_training(system: Path, text: str):
    (system / "meminfo").write_text(text)
    limit(system, "plenty", 10)
    (system / "memory.stat").write_text(text)
    figures = WorkerFigures()
    memory = EstMemory(CPU, [Parameter(torch.zeros(9))], figures)
    for _ in range(SETTLING_STEPS + 1):
        memory.applied(ests=3, generation=1)
    assert figures.ests_max == 0


def test_the_machines_own_figure_is_one():
    found = free_memory_bytes(CPU)
    assert found is not None and found > 0


def test_torchs_own_errors_are_known():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    assert is_out_of_memory(raised.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("memory format option is only supported by strided tensors"))
    assert not is_out_of_memory(ValueError("can't allocate memory"))
