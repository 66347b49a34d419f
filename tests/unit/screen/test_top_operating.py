"""What `elastane top` asks of the master: each after a question, and the answers that it shows."""

from __future__ import annotations

import signal
import sys
import termios
from collections.abc import Callable
from typing import Any

import pytest
from google.rpc import code_pb2

from elastane_cli.screen.actions import Checkpoint, Drain, Scale, question_words
from elastane_cli.screen.help import BINDINGS
from elastane_cli.screen.keys import Mouse, decode
from elastane_cli.screen.news import News
from elastane_cli.screen.operating import refusal_words
from elastane_cli.screen.pages import picture
from elastane_cli.screen.view import Layout, Notice, Row, View, press
from elastane_common.client_errors import RequestRefusedError
from elastane_common.errors import MasterUnreachableError
from elastane_proto.v1 import errors_pb2, job_pb2, ring_pb2
from pseudo_terminal import Terminal
from unit.cli.fake_master import FakeMaster, refuse, running_job, serving

LAYOUT = Layout([Row("w0", "w0"), Row("w1", "w1")])
WORKERS = View(page="job", job="train", selected="w1")
MOUSE_ON, MOUSE_OFF = b"\x1b[?1000h\x1b[?1006h", b"\x1b[?1006l\x1b[?1000l"


def asked(view: View, *keys: str | Mouse, layout: Layout = LAYOUT) -> tuple[View, list[Any]]:
    """The view after keys, and every effect on the way."""
    effects = []
    for key in keys:
        view, effect = press(view, key, layout)
        if effect is not None:
            effects.append(effect)
    return view, effects


def test_nothing_is_done_before_it_is_confirmed() -> None:
    drain = Drain("train", "w1")
    assert asked(WORKERS, "d")[1] == []
    assert asked(WORKERS, "d", "y")[1] == [drain]
    assert asked(WORKERS, "p", "Y")[1] == [Checkpoint("train")]
    for key in ("n", "escape", "enter", "q", "space", "d"):
        after, effects = asked(WORKERS, "d", key)
        assert effects == [] and after.question is None, key
    after, effects = asked(WORKERS, "d", Mouse("click", 1, 1), Mouse("wheel_down", 1, 1))
    assert effects == [] and after.question is not None, "the mouse does not answer"
    assert asked(after, "y")[1] == [drain]


def test_a_number_of_workers_is_asked_for() -> None:
    assert asked(WORKERS, "s", "8", "enter")[1] == [Scale("train", 0, 8)]
    assert asked(WORKERS, "s", *"2:16", "enter")[1] == [Scale("train", 2, 16)]
    assert asked(WORKERS, "s", "8", "backspace", "6", "x", "enter")[1] == [Scale("train", 0, 6)]
    for text in ("0", "5:2", ":", "3:", "1:2:3"):
        after, effects = asked(WORKERS, "s", *text, "enter")
        assert effects == [] and after.question is not None and text in after.question.fault
        told = picture(after, News(), 60, 12, 0.0).text
        assert repr(text) in told and f"workers: {text}_" in told
    assert asked(WORKERS, "s", "8", "escape") == (asked(WORKERS, "s", "escape")[0], [])
    assert asked(WORKERS, "s", "enter")[1] == []
    assert asked(WORKERS, "s", *"1" * 50, "backspace")[0].question.text == "1" * 39  # type: ignore[union-attr]


def test_what_is_asked_about_is_what_is_selected() -> None:
    jobs = Layout([Row("other", "other"), Row("train", "train")])
    assert asked(View(selected="train"), "s", "3", "enter", layout=jobs)[1] == [Scale("train", 0, 3)]
    assert asked(View(selected="train"), "p", "y", layout=jobs)[1] == [Checkpoint("train")]
    assert asked(View(selected="train"), "d", layout=jobs)[0].question is None, "a job is not drained"
    assert asked(View(), "s", layout=Layout())[0].question is None
    page = View(page="worker", job="train", worker="w7")
    assert asked(page, "d", "y", layout=Layout([Row("0")]))[1] == [Drain("train", "w7")]
    dataset = View(page="job", job="train", tab="tasks")
    assert asked(dataset, "d", layout=Layout([Row("images")]))[0].question is None


def test_questions_and_answers_are_at_the_foot_until_the_next_key() -> None:
    news = News(jobs=[running_job()])
    view = asked(View(), "s", layout=Layout([Row("train", "train")]))[0]
    assert "scale train, now 1:4, to [MIN:]MAX workers: _" in picture(view, news, 60, 12, 0.0).text
    view, effects = asked(view, "9", "enter", layout=Layout([Row("train", "train")]))
    assert effects and "scale train: asking the master ..." in picture(view, news, 60, 12, 0.0).text
    view = press(view, Notice("refused: no\nmore"), Layout()).view
    lines = picture(view, news, 60, 12, 0.0).lines
    assert lines[-2].plain == "refused: no more" and len(lines) == 12
    assert press(view, "down", Layout()).view.notice is None


@pytest.mark.parametrize("columns", [20, 24, 40])
def test_a_question_is_whole_on_the_narrowest_terminals(columns: int) -> None:
    news = News(jobs=[running_job()])
    for key in "dsp":
        view, _ = asked(WORKERS, key)
        lines = picture(view, news, columns, 24, 0.0).text.split("\n")
        shown = " ".join(line.strip() for line in lines[-8:])
        assert len(lines) == 24 and "…" not in "".join(lines[-8:])
        for word in (*question_words(view.question, "").split()[:2], "escape:" if key == "s" else "any"):  # type: ignore[arg-type]
            assert word in shown, (key, lines)


def test_refusals_in_words() -> None:
    refused = RequestRefusedError("no worker 'w9'", reason="not_found", hint="look with elastane status")
    assert refusal_words(refused) == "refused: no worker 'w9' (look with elastane status)"
    forbidden = RequestRefusedError("token 'bob' may not call DrainWorker", reason="permission_denied")
    assert refusal_words(forbidden) == "no right to do this: token 'bob' may not call DrainWorker"
    assert refusal_words(MasterUnreachableError("nobody there")) == "no answer: nobody there"


def test_clicks_and_turns_of_the_wheel_in_the_bytes() -> None:
    assert decode(b"\x1b[<0;10;5Mq") == ([Mouse("click", 9, 4), "q"], b"")
    assert decode(b"\x1b[<0;10;5m\x1b[<2;1;1M\x1b[<32;1;1M") == ([], b""), "release, right button, motion"
    assert decode(b"\x1b[<64;1;1M\x1b[<81;300;99M")[0] == [
        Mouse("wheel_up", 0, 0),
        Mouse("wheel_down", 299, 98),
    ]
    assert decode(b"\x1b[<0;99999999999;1M\x1b[<0;0;0M") == ([Mouse("click", 0, 0)], b"")
    stream = b"\x1b[<65;10;5Mj\x1b[A\xc3\xa9\x1b[<0;10;5M"
    whole = decode(stream)[0]
    for cut in range(1, len(stream)):
        first, rest = decode(stream[:cut], whole=False)
        second, left = decode(rest + stream[cut:])
        assert (first + second, left) == (whole, b""), cut
    assert decode(b"\x1b[" + b"1" * 99) == ([], b""), "what never ends is given up"


def test_every_key_that_does_something_is_in_the_help_and_the_other_way_round() -> None:
    layout = Layout([Row(str(number), str(number)) for number in range(30)], room=10)
    bases = [
        View(selected="5"),
        View(page="job", job="train", selected="5", filter="x"),
        View(page="job", job="train", tab="events", selected="5"),
        View(page="worker", job="train", worker="w1", selected="5"),
    ]
    with_columns = picture(View(), News(jobs=[running_job()]), 80, 24, 0.0).layout
    layout = Layout(layout.rows, room=10, headers=with_columns.headers)
    known = {name for binding in BINDINGS for name in binding.names}
    keys = known | {chr(code) for code in range(33, 127)} | {"space", "enter", "escape"}
    acting = {key for key in keys for view in bases if press(view, key, layout) != (view, None)}
    assert acting == known


# ---------------------------------------------------------------- real terminals


class StrictMaster(FakeMaster):
    """Lets nobody drain, and has no right to scale for this token."""

    def DrainWorker(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        reason = errors_pb2.ERROR_REASON_NOT_FOUND
        refuse(context, reason, "no worker 'w1'", code=code_pb2.NOT_FOUND, hint="it may have left")

    def Scale(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        reason = errors_pb2.ERROR_REASON_PERMISSION_DENIED
        refuse(context, reason, "token 'bob' may not call Scale", code=code_pb2.PERMISSION_DENIED)


def test_actions_and_the_mouse_on_a_real_terminal(master: FakeMaster, start: Callable[..., Terminal]) -> None:
    master.figures["w1"] = ring_pb2.WorkerFigures(
        ring_steps=9, ring_step_seconds=0.2, usual_steps=9, usual_all_reduce_wait_seconds=0.05
    )
    master.resources["w1"] = [ring_pb2.ResourceSample(cpu_cores=1.5, resident_bytes=2**30)]
    top = start("train", columns=120)
    top.until("step 12/30", "w0", "latest events", "q: leave")
    assert MOUSE_ON in top.raw
    top.press("\x1b[<0;3;7M")  # the row of w1
    top.until("w1 on here pid 101", "cpu         1.5 cores", "reduce wait    50ms   25 %")
    cells = top.screen.buffer[6]
    assert [cells[column].reverse for column in (0, 50, 81, 100)] == [True, True, False, False], (
        "not in the pane"
    )
    top.press("\x1b[<0;3;5M\x1b[<0;3;5M")  # twice on the title WORKER
    top.until("WORKER▼")
    top.press("d")
    top.until("drain w1 at the next step boundary?")
    top.press("y")
    top.until("w1 leaves at the next step boundary")
    top.press("s2:7\r")
    top.until("train: scaled to 2:7 workers")
    top.press("py")
    top.until("train: saved at step 13: file:///saved")
    sent = {type(one): one for one in master.requests}
    assert sent[job_pb2.JobServiceDrainWorkerRequest].worker_id == "w1"
    assert sent[job_pb2.JobServiceScaleRequest].workers_min == 2
    assert sent[job_pb2.JobServiceCheckpointRequest].name == "train"
    for columns, shown in ((60, "HEARD"), (80, "STEP"), (120, "latest events")):
        top.resize(columns, 24)
        text = top.until("step 12/30", shown, "q: leave", gone="" if columns == 120 else "latest events")
        assert all(len(line) <= columns for line in text.splitlines())
    top.press("q")
    assert top.wait() == 0
    assert top.raw.count(MOUSE_OFF) == 1 and top.raw.rindex(MOUSE_OFF) > top.raw.rindex(MOUSE_ON)


def test_what_the_master_refuses_is_told_and_top_goes_on() -> None:
    with serving(StrictMaster()) as address:
        top = Terminal("top", "train", "--no-mouse", "--master", address, "--interval", "0.05")
        try:
            top.until("step 12/30", "w1")
            top.press("jdy")
            top.until("refused: no worker 'w1' (it may have left)")
            top.press("s9\r")
            top.until("no right to do this: token 'bob' may not call Scale")
            top.press("q")
            assert top.wait() == 0
            assert b"\x1b[?1000" not in top.raw, "--no-mouse leaves it to the terminal"
        finally:
            top.close()


CRASHING = """
import elastane_cli.screen.terminal as terminal
from elastane_cli.commands.main import main
def picture(*arguments):
    raise RuntimeError("a planted fault")
terminal.picture = picture
main()
"""


def test_the_mouse_is_given_back_after_sigterm_and_after_a_crash(
    master: FakeMaster, start: Callable[..., Terminal]
) -> None:
    top = start("train")
    top.until("step 12/30")
    top.process.send_signal(signal.SIGTERM)
    assert top.wait() == 128 + signal.SIGTERM
    assert top.raw.index(MOUSE_ON) < top.raw.index(MOUSE_OFF) < top.raw.rindex(b"\x1b[?1049l")
    crashed = Terminal("top", "train", "--master", master.address, program=[sys.executable, "-c", CRASHING])
    try:
        crashed.until("a planted fault")
        assert crashed.wait() == 1
        assert crashed.raw.index(MOUSE_ON) < crashed.raw.index(MOUSE_OFF) < crashed.raw.rindex(b"\x1b[?1049l")
        assert termios.tcgetattr(crashed.theirs) == crashed.before
    finally:
        crashed.close()
