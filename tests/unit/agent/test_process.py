"""Real child processes: output, exit, signals, and that none outlives its parent."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from elastane_common.processes.child import ChildProcess, ExitStatus

WAIT_SECONDS = 30.0
SOURCES = Path(__file__).parents[3]


def child_of(code: str, lines: list[tuple[str, str]] | None = None, **options: object) -> ChildProcess:
    heard = lines if lines is not None else []
    child = ChildProcess(
        "w0",
        [sys.executable, "-u", "-c", textwrap.dedent(code)],
        on_line=lambda _, stream, text: heard.append((stream, text)),
        **options,  # type: ignore[arg-type]
    )
    child.start()
    return child


def wait_gone(pid: int) -> None:
    """Until no process of that number runs (a zombie nobody reaps is gone too)."""
    try:
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            process.wait(WAIT_SECONDS)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        pytest.fail(f"process {pid} still runs")


def test_output_of_both_streams_and_exit_code() -> None:
    lines: list[tuple[str, str]] = []
    child = child_of(
        "import sys; print('out'); print('err', file=sys.stderr); print('rest', end=''); sys.exit(7)", lines
    )
    assert child.wait(WAIT_SECONDS) == ExitStatus(7)
    assert [text for stream, text in lines if stream == "stdout"] == ["out", "rest"]
    assert [text for stream, text in lines if stream == "stderr"] == ["err"]


def test_the_error_that_ended_a_child_is_told_with_its_exit() -> None:
    code = """
        import atexit, sys
        atexit.register(print, "ended: no matter how", file=sys.stderr)
        try:
            import absent
        except ImportError as error:
            raise %s from error
    """
    for raised, error, repeats in (
        ("error", "ModuleNotFoundError: No module named 'absent'", True),
        ("ValueError('a: b')", "ValueError: a: b", False),
        (
            "__import__('json').JSONDecodeError('x', '', 0)",
            "json.decoder.JSONDecodeError: x: line 1 column 1 (char 0)",
            False,
        ),
    ):
        status = child_of(code % raised).wait(WAIT_SECONDS)
        assert status is not None and (status.returncode, status.error, status.repeats) == (1, error, repeats)
    status = child_of("if True print('x')").wait(WAIT_SECONDS)
    assert status is not None and status.repeats


def test_exit_is_told_once_after_the_last_line() -> None:
    order: queue.SimpleQueue[str] = queue.SimpleQueue()
    child = ChildProcess(
        "w0",
        [sys.executable, "-c", "print('x' * 300000); print('last')"],
        on_line=lambda _, __, text: order.put(text[:10]),
        on_exit=lambda process, status: order.put(f"{process.name}: {status}"),
    )
    child.start()
    child.wait(WAIT_SECONDS)
    seen = [order.get_nowait() for _ in range(order.qsize())]
    assert seen[-2:] == ["last", "w0: exit code 0"]


def test_a_killed_child_says_by_what() -> None:
    child = child_of("import signal; signal.pause()")
    child.kill_group()
    status = child.wait(WAIT_SECONDS)
    assert status is not None and status.signal_name == "SIGKILL" and str(status) == "ended by SIGKILL"
    child.signal(signal.SIGTERM)  # nothing happens any more
    child.kill_group()


def test_stop_asks_first_and_kills_then() -> None:
    lines: list[tuple[str, str]] = []
    polite = child_of(
        "import signal, sys; signal.signal(15, lambda *_: sys.exit(3)); print('up'); signal.pause()", lines
    )
    until_said(polite, lines, "up")
    assert polite.stop(WAIT_SECONDS) == ExitStatus(3)
    lines.clear()
    deaf = child_of(
        "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('up')\nwhile True: signal.pause()", lines
    )
    until_said(deaf, lines, "up")
    assert deaf.stop(0.1) == ExitStatus(-signal.SIGKILL)


def test_what_a_child_started_ends_with_it() -> None:
    lines: list[tuple[str, str]] = []
    child = child_of(
        """
        import subprocess, sys
        inner = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        print(inner.pid)
        """,
        lines,
    )
    assert child.wait(WAIT_SECONDS) == ExitStatus(0)
    wait_gone(int(lines[0][1]))


def test_a_grandchild_that_keeps_the_pipe_does_not_hold_the_exit_back() -> None:
    lines: list[tuple[str, str]] = []
    child = child_of(
        """
        import subprocess, sys
        pause = [sys.executable, "-c", "import signal; signal.pause()"]
        inner = subprocess.Popen(pause, start_new_session=True)
        print(inner.pid)
        """,
        lines,
    )
    try:
        assert child.wait(WAIT_SECONDS) == ExitStatus(0)
    finally:
        os.kill(int(lines[0][1]), signal.SIGKILL)


def test_no_child_outlives_a_killed_parent() -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                """
                import sys, signal
                from elastane_common.processes.child import ChildProcess
                for number in range(2):
                    child = ChildProcess(f"w{number}", [sys.executable, "-u", "-c",
                        "import os, signal; print(os.getpid()); signal.pause()"],
                        on_line=lambda name, stream, text: print(text + "\\n", end="", flush=True))
                    child.start()
                signal.pause()
                """
            ),
        ],
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(SOURCES / root) for root in ("common", "proto", "worker")),
        },
        text=True,
    )
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for pid in pids:
        wait_gone(pid)


def test_a_child_whose_parent_is_gone_already_does_not_start() -> None:
    launch = SOURCES / "common/elastane_common/processes/launch.py"
    not_the_parent = os.getppid()
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            str(launch),
            str(not_the_parent),
            "9",
            sys.executable,
            "-c",
            "print('ran')",
        ],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 137 and done.stdout == b""


def test_a_child_never_started_is_no_trouble() -> None:
    child = ChildProcess("w0", ["/nowhere"], log=Path(os.devnull))
    child.kill_group()
    assert child.wait(0.0) is None


def until_said(child: ChildProcess, lines: list[tuple[str, str]], word: str) -> None:
    """Until the child has said the word; it must be alive then."""
    for _ in range(int(WAIT_SECONDS / 0.02)):
        if any(text == word for _, text in lines):
            return
        assert child.wait(0.02) is None, lines
    pytest.fail(f"{word!r} was never said: {lines}")
