"""`elastane report`: the facts, what each incident cost, and files that need no other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from google.protobuf import timestamp_pb2
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_cli.report.facts import Facts, gather
from elastane_cli.report.html import as_html
from elastane_cli.report.markdown import as_markdown
from elastane_cli.report.steps import BUCKETS_MAX, DURATIONS_MAX, StepFold
from elastane_cli.report.texts import checkpoints
from elastane_common.logged import LoggedStep
from elastane_proto.v1 import job_pb2, metric_pb2, ring_pb2
from unit.cli.fake_master import FakeMaster, serving

BEGAN = 1_700_000_000
EVIL = "<script>alert('x')</script>"
SHA = "5f" * 32


def event(number: int, at: float, kind: str, reason: str = "", **facts: str) -> ring_pb2.Event:
    moment = timestamp_pb2.Timestamp()
    moment.FromNanoseconds(round((BEGAN + at) * 1e9))
    return ring_pb2.Event(
        sequence=number, time=moment, kind=kind, reason=reason, generation=number, facts=facts
    )


EVENTS = [
    event(1, 0, "job_created"),
    event(2, 1, "ring_change", "w0, w1 joined", members="w0[0:2], w1[2:4]", planned="False"),
    event(3, 20.05, "worker_lost", "w1: its stream broke"),
    event(4, 20.06, "ring_change", f"w1 was lost {EVIL}", members="w0[0:4]", planned="False"),
    event(5, 25.5, "ring_change", "w2 joined", members="w0[0:2], w2[2:4]", planned="True"),
    event(6, 30, "checkpoint_saved", "written", checkpoint="step-9", at_step="9", bytes="4096", sha256=SHA),
    event(7, 40, "job_succeeded", "all steps are done"),
]


def steps() -> Iterator[LoggedStep]:
    """Two a second from 10 on; a death after step 20 waits three seconds, and two steps are done again."""
    for number in range(21):
        yield LoggedStep(number, 0, 2, BEGAN + 10 + number / 2, {"loss": 1.0}, 64)
    for number in range(19, 40):
        yield LoggedStep(number, 0, 4, BEGAN + 23 + (number - 19) / 2, {"loss": 1.0}, 64)


def job() -> job_pb2.Job:
    made = job_pb2.Job(
        name=EVIL,
        settings=job_pb2.JobSettings(ests=4, seed=7),
        phase=job_pb2.JOB_PHASE_SUCCEEDED,
        reason="all steps are done",
        steps_per_epoch=20,
        epochs=2,
        environment={"torch": "2.13.0", "threads": "1"},
    )
    made.created.seconds = BEGAN
    return made


def series() -> list[metric_pb2.Series]:
    points = [
        metric_pb2.Point(step=n, steps=1, mean=1 / (n + 1), min=0.0, max=1.0, last=1 / (n + 1))
        for n in range(40)
    ]
    return [metric_pb2.Series(name="loss", points=points)]


def facts() -> Facts:
    return gather(job(), EVENTS, steps(), series(), BEGAN + 50.0)


def test_the_timeline_of_the_ring() -> None:
    rings = facts().rings
    assert [(ring.began - BEGAN, ring.ended - BEGAN) for ring in rings] == [
        (1, pytest.approx(20.06)),
        (pytest.approx(20.06), 25.5),
        (25.5, 40),
    ]
    assert rings[1].members == {"w0": (0, 4)} and facts().workers == ["w0", "w1", "w2"]


def test_what_each_incident_cost() -> None:
    """The death: from the last commit before it (20.0) to the next (23.0), less a step of half a second."""
    death, joined = facts().incidents
    assert (death.kind, death.planned, death.shared) == ("ring_change", False, False)
    assert death.cost_seconds == pytest.approx(2.5)
    assert joined.planned and joined.cost_seconds == pytest.approx(0.0)
    assert facts().lost_seconds == pytest.approx(2.5)
    assert facts().steps.replayed == 2 and facts().steps.next_step == 40


def test_two_incidents_in_one_wait_are_counted_once() -> None:
    twice = [*EVENTS[:4], event(5, 21, "ring_change", "and w0 too", members="w2[0:4]"), *EVENTS[6:]]
    found = gather(job(), twice, steps(), [], BEGAN + 50.0)
    assert [(one.shared, one.cost_seconds) for one in found.incidents] == [
        (False, pytest.approx(2.5)),
        (True, pytest.approx(2.5)),
    ]
    assert found.lost_seconds == pytest.approx(2.5)


def test_an_incident_after_which_nothing_was_committed_has_no_price() -> None:
    late = [*EVENTS[:2], event(3, 60, "ring_change", "all lost", members="none")]
    (one,) = gather(job(), late, steps(), [], BEGAN + 70.0).incidents
    assert one.cost_seconds is None


def test_a_long_history_is_folded_in_bounded_memory() -> None:
    rng = random.Random(1)
    fold, now = StepFold(), 0.0
    for number in range(30_000):
        now += rng.uniform(0.05, 0.15)
        fold.take(LoggedStep(number, 0, 1, now, {}, 32))
    assert fold.step_seconds == pytest.approx(0.1, rel=0.05) and len(fold._durations) <= DURATIONS_MAX
    spread = fold.throughput()
    assert len(spread) <= BUCKETS_MAX
    width = spread[1][0] - spread[0][0]
    assert sum(rate * width for _, rate in spread) == pytest.approx(30_000 * 32)


class Page(HTMLParser):
    """Which elements there are, that each is closed, and its text."""

    VOID = ("meta", "br", "hr", "img", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_tells_all_and_fetches_nothing() -> None:
    page = Page(as_html(facts(), BEGAN + 50.0))
    assert not {"script", "link", "img", "iframe"} & set(page.seen)
    assert not {"src", "href", "onclick", "onload"} & {name for name, _ in page.attributes}
    assert "url(" not in page.text and "@import" not in page.text
    assert f"Job {EVIL}" in page.text and f"w1 was lost {EVIL}" in page.text  # said, and not run
    for text in ("2.50 s", "40 of 40", SHA, "step-9", "2.13.0", "torch", "ESTs 2-3", "not planned"):
        assert text in page.text, text
    assert page.seen.count("rect") == 5  # w0 three times, w1 and w2 once
    assert page.seen.count("polyline") == 2 and page.seen.count("polygon") == 1
    assert ("name", "viewport") in page.attributes


def test_workers_with_whole_domain_names_are_told_apart() -> None:
    names = [f"spot-pool-b-{number}.training.svc.cluster.local" for number in range(2)]
    members = f"{names[0]}[0:2], {names[1]}[2:4]"
    change = event(2, 1, "ring_change", "both joined", members=members, planned="False")
    page = as_html(gather(job(), [EVENTS[0], change], [], [], BEGAN + 50.0), BEGAN)
    for number, name in enumerate(names):
        assert f">spot-pool-b-{number}…<title>{name}</title></text>" in page


def test_markdown_tells_the_same_and_others_words_change_no_table() -> None:
    hostile = job()
    hostile.name, hostile.reason = "a|b", "one\ntwo `code` [x](y)"
    text = as_markdown(gather(hostile, EVENTS, steps(), series(), BEGAN + 50.0), BEGAN + 50.0)
    assert text.startswith("# Job a\\|b\n") and "\\[x\\](y)" in text and "<script>" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith(" |") for line in rows)
    for part in ("2.50 s", SHA, "## The ring over time", "loss: 0.025 at the last of 40 steps", "⠀"):
        assert part in text, part


def test_cost_where_the_job_has_prices() -> None:
    found = facts()
    found.cost = {
        "currency": "USD", "spent_micros": 1_500_000, "on_demand_micros": 4_000_000,
        "saved_micros": 2_500_000, "worker_seconds": 100.0, "replayed_seconds": 2.0,
        "replayed_micros": 30_000, "idle_seconds": 5.0, "idle_micros": 75_000,
    }  # fmt: skip
    for text in (as_html(found, BEGAN), as_markdown(found, BEGAN)):
        assert "1.5000 USD" in text and "2.5000 USD" in text and "2.00 s, 0.0300 USD" in text


def test_of_many_checkpoints_the_first_and_the_newest_stand() -> None:
    saved = [
        event(number, number, "checkpoint_saved", "written", checkpoint=f"step-{number}", at_step=str(number),
              bytes="10", sha256=SHA)
        for number in range(3, 23)
    ]  # fmt: skip
    table = checkpoints(gather(job(), [*EVENTS[:2], *saved], [], [], BEGAN + 100.0))
    assert [row[1] for row in table.rows] == ["3", "4 to 17", "18", "19", "20", "21", "22"]
    assert table.rows[1][0] == "14 between them" and table.rows[1][2] == "140"
    few = checkpoints(gather(job(), [*EVENTS[:2], *saved[:7]], [], [], BEGAN + 100.0))
    assert len(few.rows) == 7, "one alone is not folded"


def test_a_job_that_has_not_begun() -> None:
    fresh = job_pb2.Job(name="new", phase=job_pb2.JOB_PHASE_WAITING, reason="no worker is there yet")
    found = gather(fresh, [], [], [], BEGAN + 1.0)
    assert "waiting: no worker is there yet" in Page(as_html(found, BEGAN)).text
    assert "There was none." in as_markdown(found, BEGAN)


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    fake = FakeMaster()
    fake.jobs = {"train": job()}
    fake.jobs["train"].name = "train"
    fake.events = EVENTS
    for step in steps():
        told = metric_pb2.StepValues(step=step.step, samples=step.samples, values=step.values)
        told.committed.FromNanoseconds(round(step.committed * 1e9))
        fake.steps.append(told)
    with serving(fake) as address:
        fake.address = address
        yield fake


def test_the_command(master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def ask(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(build_app(), ["report", *arguments, "--master", master.address])
        return result.exit_code, result.stdout, result.stderr

    assert ask() == (0, "train-report.html: succeeded, 40 steps, 2 incidents\n", "")
    assert "2.50 s" in Page((tmp_path / "train-report.html").read_text()).text
    assert ask("-o", "r.md")[0] == 0 and (tmp_path / "r.md").read_text().startswith("# Job train")
    assert ask("-o", "-")[1].startswith("# Job train")
    assert ask("-o", "-", "--format", "html")[1].startswith("<!doctype html>")
    assert ask("--format", "pdf")[0] == 2
    code, _, complaint = ask("-o", "nowhere/r.html")
    assert code == 1 and "nowhere/r.html" in complaint and "hint" in complaint
    assert ask("nonsense")[0] == 3
