"""The last lines of workers in a master's memory."""

from __future__ import annotations

from elastane_master.jobs.limits import Limits
from elastane_master.jobs.worker_output import LINES_AT_ONCE, WorkerOutputs


def told(outputs: WorkerOutputs, worker: str, first: int, *texts: str, agent: str = "a") -> None:
    outputs.report(worker, agent, first, [(float(first), False, text, 0) for text in texts])


def read(outputs: WorkerOutputs, worker: str = "w", position: int = 0) -> list[tuple[int, list[str], str]]:
    return [
        (piece.left_out, [line.text for line in piece.lines], piece.ended.how if piece.ended else "")
        for piece in outputs.pieces(worker, position)
    ]


def test_a_repeated_report_adds_nothing_and_a_gap_is_told() -> None:
    outputs = WorkerOutputs(Limits())
    told(outputs, "w", 0, "a", "b")
    told(outputs, "w", 0, "a", "b", "c")
    told(outputs, "w", 7, "h")
    assert read(outputs) == [(0, ["a", "b", "c"], ""), (4, ["h"], "")]
    assert read(outputs, position=outputs.begin("w", 1)) == [(0, ["h"], "")]


def test_an_exit_stands_after_the_lines_before_it_and_counts_once() -> None:
    outputs = WorkerOutputs(Limits())
    told(outputs, "w", 0, "a")
    assert outputs.exited("w", 1, -9, "ended by SIGKILL", "", expected=False)
    assert not outputs.exited("w", 1, -9, "ended by SIGKILL", "", expected=False)
    assert outputs.has_ended("w")
    told(outputs, "w", 1, "b")
    assert not outputs.has_ended("w")
    assert read(outputs) == [(0, ["a"], ""), (0, [], "ended by SIGKILL"), (0, ["b"], "")]
    assert read(outputs, position=1) == [(0, [], "ended by SIGKILL"), (0, ["b"], "")]
    assert read(outputs, position=2) == []


def test_after_a_takeover_lines_continue_where_their_reader_was() -> None:
    before = WorkerOutputs(Limits())
    told(before, "w", 0, *"abcdef")
    [*_, last] = before.pieces("w", 0)
    after = WorkerOutputs(Limits())
    assert after.memory != before.memory
    told(after, "w", 4, *"efgh")  # the agent has the last four
    line = last.lines[-1]
    assert read(after, position=after.position("w", line.agent, line.number)) == [(0, ["g", "h"], "")]
    assert read(after) == [(4, ["e", "f", "g", "h"], "")], "whoever reads all is told what is missing"
    assert after.position("w", "a", 7) == 8 and after.position("w", "b", 7) == 0


def test_another_agent_that_begins_anew_is_appended() -> None:
    outputs = WorkerOutputs(Limits())
    told(outputs, "w", 0, "a")
    outputs.exited("w", 1, 1, "exit code 1", "", expected=False)
    told(outputs, "w", 0, "b", agent="other")
    assert outputs.exited("w", 1, 0, "done", "", expected=True)
    assert read(outputs) == [(0, ["a", "b"], ""), (0, [], "done")]


def test_memory_is_bounded_by_worker_and_by_job() -> None:
    limits = Limits(output_lines_per_worker_max=3, output_bytes_per_job_max=2**16)
    outputs = WorkerOutputs(limits)
    told(outputs, "w", 0, *"abcde")
    assert read(outputs) == [(2, ["c", "d", "e"], "")]
    for number in range(200):
        told(outputs, f"w{number}", 0, "x" * 1000)
    assert 30 < len(outputs.workers) < 60 and "w" not in outputs.workers and "w199" in outputs.workers


def test_many_lines_come_in_several_pieces() -> None:
    outputs = WorkerOutputs(Limits())
    told(outputs, "w", 0, *map(str, range(2 * LINES_AT_ONCE + 1)))
    assert [len(texts) for _, texts, _ in read(outputs)] == [LINES_AT_ONCE, LINES_AT_ONCE, 1]
