"""What a machine computes on, as its kernel and driver name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastane_common.device_types import cpu_type, device_memory_bytes, gpu_type

CPU = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags: fpu\nprocessor: 1\nmodel name\t: Another\n"
GPU = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 23\n"


def test_the_processor_and_the_first_gpu_are_named(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(CPU)
    for number in (1, 0):
        card = tmp_path / "driver" / "nvidia" / "gpus" / f"0000:0{number}:00.0"
        card.mkdir(parents=True)
        (card / "information").write_text(GPU.replace("80GB", f"8{number}GB"))
    assert cpu_type(tmp_path) == "Some CPU @ 2 GHz"
    assert gpu_type(tmp_path) == "NVIDIA H100 80GB HBM3"


def test_where_nothing_is_named_there_is_a_name_for_the_processor_and_none_for_a_gpu(tmp_path: Path) -> None:
    assert cpu_type(tmp_path).endswith(" CPU")
    assert gpu_type(tmp_path) == ""


def test_the_memory_of_a_gpu_is_unknown_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert device_memory_bytes(gpu=True) == 0
    assert device_memory_bytes(gpu=False) > 2**20
