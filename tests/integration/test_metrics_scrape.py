"""A real master and agent, scraped while a small job trains and a worker is killed.

What is scraped is held against what happened, against the metrics that the catalogues promise, and against
every expression of the alert rules and the dashboard.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc
import promql_parser
import pytest
import yaml
from prometheus_client import parser
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from test_agent import Run

from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_common.client import MasterClient
from elastane_common.observe import catalogue as agents
from elastane_common.observe.running_median import WINDOW
from elastane_master.metrics import catalogue
from elastane_proto.v1 import job_pb2, ring_pb2, shard_pb2, shard_pb2_grpc
from integration.forked_cli import ForkedCommands
from patience import Patience

OBSERVABILITY = Path(__file__).parents[2] / "deploy" / "observability"
SCRIPT = Path(__file__).parent / "scripts" / "steady_linear.py"
JOB = "steady"
#: What Prometheus itself adds to everything it scrapes.
TARGET_LABELS = {"job", "instance"}


def fetch(address: str, accept: str = "") -> tuple[str, str]:
    """The text of a scrape, and its content type."""
    request = Request(f"http://{address}/metrics", headers={"Accept": accept} if accept else {})
    with urlopen(request, timeout=20) as response:
        return response.read().decode(), response.headers["Content-Type"]


class Scrape:
    """One scrape, parsed as Prometheus would."""

    def __init__(self, text: str) -> None:
        self.families: list[Metric] = list(parser.text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The one sample of that name whose labels include these."""
        found = [
            one.value for one in self.samples if one.name == name and labels.items() <= one.labels.items()
        ]
        assert len(found) == 1, (name, labels, found)
        return found[0]

    def labels(self) -> dict[str, dict[str, set[str]]]:
        """By name of a sample: its labels, and their values."""
        known: dict[str, dict[str, set[str]]] = {}
        for sample in self.samples:
            labels = known.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
        return known


@dataclass
class Seen:
    """What was scraped of the master and of the agent, and what the API said between two scrapes."""

    before: Scrape
    after: Scrape
    openmetrics: str
    agent: Scrape
    job: job_pb2.Job
    measured: Mapping[str, ring_pb2.WorkerFigures]
    ended: job_pb2.Job
    last: Mapping[str, ring_pb2.WorkerFigures]
    killed: str
    survivor: str


def lease_some_and_ask_for_nonsense(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        shards = shard_pb2_grpc.ShardServiceStub(channel)
        settings = shard_pb2.DatasetSettings(task_size=1, range=shard_pb2.RangeSource(size=10))
        settings.lease.seconds = 600
        shards.CreateDataset(shard_pb2.CreateDatasetRequest(job=JOB, dataset="d", settings=settings))
        shards.LeaseTasks(shard_pb2.LeaseTasksRequest(job=JOB, dataset="d", worker_id="x", max_tasks=3))
        with pytest.raises(grpc.RpcError):
            shards.GetProgress(shard_pb2.GetProgressRequest(job="absent"))


def wait_for(client: MasterClient, step: int, members: int, generation: int = 0) -> job_pb2.Job:
    """The job, once a ring of so many that is not older than `generation` has trained, up to `step` at least.

    Its workers are members as soon as it is announced: until it has trained, one of them may be the only one
    that holds the state.
    """
    formed = next(
        event
        for event in client.events(JOB, follow=True)
        if event.HasField("ring_formed")
        and event.ring_formed.workers == members
        and event.generation >= generation
    )
    step = max(step, formed.ring_formed.resume_step + 1)
    return next(job for job in client.watch_job(JOB) if job.step >= step)


def told_by_agent(address: str, job: job_pb2.Job) -> Scrape:
    """A scrape of the agent, once both workers have told of the ring they are in: they do so every second."""
    limit = Patience(60.0)
    while limit.left():
        scrape = Scrape(fetch(address)[0])
        told = [one.value for one in scrape.samples if one.name == "elastane_worker_generation"]
        steps = [one.value for one in scrape.samples if one.name == "elastane_worker_step"]
        if len(told) == 2 and min(told) >= job.generation and min(steps) >= job.step:
            return scrape
        time.sleep(0.1)
    raise AssertionError(f"the workers did not tell of generation {job.generation} in a minute")


def measured_by(
    client: MasterClient, workers: Iterable[str], generation: int
) -> Mapping[str, ring_pb2.WorkerFigures]:
    """The figures, once both medians of each worker are of the last steps of its ring.

    Before, that of its ESTs has steps of the ring before in it, whose speed may have been another: it is
    the device's, whatever the ring. When steps have become twice as long or short, a worker counts anew.
    """
    limit = Patience(60.0)
    while limit.left():
        figures = client.worker_figures(JOB, workers)
        measured = [
            min(one.ring_steps, one.est_steps) for one in figures.values() if one.generation >= generation
        ]
        if len(measured) == 2 and min(measured) >= WINDOW:
            return figures
        time.sleep(0.1)
    raise AssertionError("the workers did not measure the steps of their ring in a minute")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, forked_commands: ForkedCommands) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("metrics")
    http_file = folder / "http"
    master = EmbeddedMaster(
        folder / "state", arguments=("--http", "127.0.0.1:0", "--http-port-file", str(http_file))
    )
    run = None
    try:
        master.start()
        http = http_file.read_text().strip()
        run = Run(
            *("--master", master.address, "--job", JOB, "--ests", "2", "--workers", "1:2"),
            *("--checkpoint", str(folder / "saved"), "--checkpoint-steps", "5", "--join-window", "0.05"),
            *(
                "--spot-price",
                "3.6",
                "--on-demand-price",
                "7.2",
                "--currency",
                "EUR",
                "--capacity",
                "spot",
            ),
            *("--metrics", "127.0.0.1:0", str(SCRIPT)),
            forked=forked_commands,
        )
        agent_address = run.until("metrics_served")["address"]
        workers = {line["worker"]: line["pid"] for line in (run.until("worker_started") for _ in "12")}
        with MasterClient(master.address, timeout_seconds=60.0) as client:
            first = wait_for(client, 11, members=2)
            lease_some_and_ask_for_nonsense(master.address)
            before = Scrape(fetch(http)[0])
            killed, survivor = sorted(workers, reverse=True)
            os.kill(workers[killed], signal.SIGKILL)
            run.until("worker_started", worker=killed)
            joined = wait_for(client, first.step, members=2, generation=first.generation + 2)
            job = wait_for(client, joined.step + 60, members=2, generation=joined.generation)
            agent = told_by_agent(agent_address, job)
            measured = measured_by(client, workers, job.generation)
            client.scale_job_by_itself(JOB, "deadline=+2h", 2, 2)
            for told_of in client.watch_job(JOB):
                if told_of.scaling.HasField("predicted_finish"):
                    break
            after = Scrape(fetch(http)[0])
            told = fetch(http, "application/openmetrics-text; version=1.0.0")
            assert told[1].startswith("application/openmetrics-text; version=1.0.0")
            client.cancel_job(JOB)
            assert run.end() == 0, run.said()
            ended, last = client.get_job(JOB), client.worker_figures(JOB, workers)
        yield Seen(before, after, told[0], agent, job, measured, ended, last, killed, survivor)
    finally:
        if run is not None:
            run.close()
        master.stop()


# ---------------------------------------------------------------- what is told is what happened


def test_the_state_of_the_job_is_told(seen: Seen) -> None:
    after, job = seen.after, {"job_name": JOB}
    assert after.value("elastane_job_phase", phase="running", **job) == 1
    assert after.value("elastane_job_phase", phase="failed", **job) == 0
    assert after.value("elastane_job_ests", **job) == 2
    assert after.value("elastane_job_workers", state="member", **job) == 2
    assert after.value("elastane_job_generation", **job) == seen.job.generation
    assert after.value("elastane_job_step", **job) >= seen.job.step
    assert after.value("elastane_job_planned_steps", **job) == seen.job.steps_per_epoch * seen.job.epochs
    assert after.value("elastane_job_saved_step", **job) >= 10
    assert (
        after.value("elastane_job_contexts_bytes", **job) > 2 * 5000
    )  # each EST has a Mersenne twister or two
    assert after.value("elastane_job_tasks", queue="lockstep", state="doing", **job) in (2, 4)
    assert after.value("elastane_job_tasks", queue="dynamic", state="doing", **job) == 3
    assert after.value("elastane_job_tasks", queue="dynamic", state="todo", **job) == 7
    assert after.value("elastane_master_leader") == 1
    assert after.value("elastane_master_jobs", phase="running") == 1
    assert after.value("elastane_store_up") == 1


def test_a_kill_shows_in_the_counters(seen: Seen) -> None:
    def grown(name: str, **labels: str) -> float:
        return seen.after.value(name, **labels) - seen.before.value(name, **labels)

    job = {"job_name": JOB}
    # Two where the second worker came before the first ring had formed, but after the join window.
    assert seen.before.value("elastane_job_ring_changes_total", cause="start", **job) in (1, 2)
    assert seen.before.value("elastane_job_workers_lost_total", cause="death", **job) == 0
    assert grown("elastane_job_workers_lost_total", cause="death", **job) == 1
    assert grown("elastane_job_workers_lost_total", cause="eviction", **job) == 0
    assert grown("elastane_job_ring_changes_total", cause="loss", **job) == 1
    assert grown("elastane_job_ring_changes_total", cause="join", **job) == 1
    assert grown("elastane_job_generation", **job) == 2
    assert grown("elastane_job_steps_replayed_total", **job) in (
        1,
        2,
    )  # the one in flight, or one applied too
    assert grown("elastane_job_steps_committed_total", **job) == grown("elastane_job_step", **job)
    assert grown("elastane_job_events_total", kind="ring_formed", **job) == 2
    assert seen.after.value("elastane_job_checkpoints_total", outcome="saved", **job) >= 1
    assert seen.after.value("elastane_job_checkpoints_total", outcome="failed", **job) == 0


def test_what_workers_did_since_their_last_heartbeats_is_not_lost(seen: Seen) -> None:
    assert seen.last.keys() == {seen.killed, seen.survivor}
    for figures in seen.last.values():
        assert figures.step >= seen.ended.step, "each member has applied what is committed"


def test_each_worker_has_measured_its_device(seen: Seen) -> None:
    survivor, replacement = seen.measured[seen.survivor], seen.measured[seen.killed]
    assert survivor.device_type == replacement.device_type != ""
    for figures in (survivor, replacement):
        assert (figures.ring_workers, figures.ests) == (2, 1)
        assert 0 < figures.est_seconds < figures.ring_step_seconds, "an EST's part is a part of a step"
        assert figures.ring_steps == figures.est_steps == WINDOW


def test_steps_calls_and_writes_are_timed(seen: Seen) -> None:
    after, job = seen.after, {"job_name": JOB}
    committed = after.value("elastane_job_steps_committed_total", **job)
    assert after.value("elastane_job_commit_seconds_count", **job) == pytest.approx(committed, abs=3)
    assert committed - 6 <= after.value("elastane_job_step_seconds_count", **job) < committed
    assert 0 < after.value("elastane_job_step_seconds_sum", **job) < 120
    assert (
        after.value("elastane_rpc_duration_seconds_count", method="ShardService.LeaseTasks", code="OK") == 1
    )
    progress = {"method": "ShardService.GetProgress", "code": "NOT_FOUND"}
    assert after.value("elastane_rpc_duration_seconds_count", **progress) == 1
    assert after.value("elastane_rpc_refusals_total", reason="not_found") == 1
    assert after.value("elastane_rpc_streams_open", method="RingService.Attend") == 2
    ended = [sample for sample in after.samples if sample.name == "elastane_rpc_streams_ended_total"]
    assert sum(one.value for one in ended if one.labels["method"] == "RingService.Attend") == 1
    writes = after.value("elastane_store_append_seconds_count")
    assert writes > committed / 2 and after.value("elastane_store_batch_records_sum") >= writes
    assert after.value("elastane_store_written_bytes_total") > 0


def test_cost_is_told_in_units_of_the_currency(seen: Seen) -> None:
    after, job = seen.after, {"job_name": JOB}
    used = {
        use: after.value("elastane_job_worker_seconds", use=use, **job)
        for use in ("useful", "replayed", "idle")
    }
    assert used["useful"] > used["replayed"] > 0 and used["idle"] > 0
    assert after.value("elastane_job_capacity_seconds", capacity="spot", **job) == pytest.approx(
        sum(used.values())
    )
    assert after.value("elastane_job_capacity_seconds", capacity="on_demand", **job) == 0
    money = {"currency": "EUR", **job}
    # 3.60 an hour is a thousandth a second.
    spent = after.value("elastane_job_cost_units", kind="spent", **money)
    assert spent == pytest.approx(sum(used.values()) / 1000, abs=1e-6)
    assert after.value("elastane_job_cost_units", kind="replayed", **money) == pytest.approx(
        used["replayed"] / 1000, abs=1e-6
    )
    on_demand = after.value("elastane_job_cost_units", kind="on_demand", **money)
    assert on_demand == pytest.approx(2 * used["useful"] / 1000, abs=1e-6)
    assert after.value("elastane_job_saved_units", **money) == pytest.approx(on_demand - spent, abs=2e-6)
    assert after.value("elastane_job_savings_ratio", **job) == pytest.approx(
        (on_demand - spent) / on_demand, abs=1e-3
    )
    assert after.value("elastane_job_price_units", capacity="spot", **money) == 3.6


def test_the_agent_tells_of_its_workers(seen: Seen) -> None:
    agent = seen.agent
    assert agent.value("elastane_agent_info", job_name=JOB) == 1
    assert agent.value("elastane_agent_workers_running") == 2
    assert agent.value("elastane_agent_worker_restarts_total") == 1
    assert agent.value("elastane_agent_worker_exits_total", outcome="killed") == 1
    survivor, newcomer = {"worker": seen.survivor}, {"worker": seen.killed}
    assert agent.value("elastane_worker_est_seconds", **survivor) > 0
    assert agent.value("elastane_worker_after_est_seconds", **survivor) > 0
    assert agent.value("elastane_worker_ring_step_seconds", **survivor) > 0
    sent = agent.value("elastane_worker_handover_bytes_total", direction="sent", **survivor)
    received = agent.value("elastane_worker_handover_bytes_total", direction="received", **newcomer)
    # Weights and Adam's two moments of a layer of 64 x 64 and its bias, and some little more.
    assert 3 * 4 * (64 * 64 + 64) <= received < 2 * 3 * 4 * (64 * 64 + 64)
    assert sent >= received
    assert agent.value("elastane_worker_generation", **survivor) == seen.job.generation
    rings = agent.value("elastane_worker_rings_formed_total", **survivor)
    assert 3 <= rings <= seen.job.generation  # it may have come second, to a ring of one
    assert agent.value("elastane_worker_rings_formed_total", **newcomer) == 1  # of the process that runs now
    # The step in flight, and the one before it if that was applied ahead and had to be undone.
    undone = agent.value("elastane_worker_steps_undone_total", **survivor)
    assert agent.value("elastane_worker_steps_replayed_total", **survivor) - undone in (0, 1)
    assert undone in (0, 1)
    steps = agent.value("elastane_worker_step_seconds_count", **survivor)
    assert 20 < steps <= seen.after.value("elastane_job_step", job_name=JOB) + 1
    waits = ("all_reduce_wait", "prepared_wait", "data_wait")
    waited = [agent.value(f"elastane_worker_{wait}_seconds_total", **survivor) for wait in waits]
    assert all(seconds > 0 for seconds in waited)
    assert sum(waited) < agent.value("elastane_worker_step_seconds_sum", **survivor)
    assert agent.value("elastane_worker_ests", **survivor) == 1


# ---------------------------------------------------------------- the form


@pytest.mark.parametrize(("which", "metrics"), [("after", catalogue.METRICS), ("agent", agents.METRICS)])
def test_every_metric_of_the_catalogue_has_samples(seen: Seen, which: str, metrics: Any) -> None:
    scrape: Scrape = getattr(seen, which)
    found = {family.name: family for family in scrape.families}
    for metric in metrics:
        family = found[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        is_of_others = metric.name.startswith(("elastane_job_pipeline_", "elastane_job_slots_"))
        assert bool(family.samples) != is_of_others, f"{metric.name}: {family.samples}"
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), sample
    extra = {name for name in found if name.startswith("elastane_")}
    assert extra == {metric.name.removesuffix("_total") for metric in metrics}
    assert all(name.startswith(("elastane_", "process_", "python_")) for name in found)


def test_openmetrics_says_the_same(seen: Seen) -> None:
    families = list(openmetrics_parser.text_string_to_metric_families(seen.openmetrics))
    names = {family.name for family in families}
    assert names == {family.name for family in seen.after.families}
    assert seen.openmetrics.endswith("# EOF\n")


# ---------------------------------------------------------------- rules and dashboard


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((OBSERVABILITY / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[tuple[str, str, str]]:
    """(title, expression, legend) of every query of the dashboard."""
    dashboard = json.loads((OBSERVABILITY / "grafana-dashboard.json").read_text())
    return [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def selectors(expression: Any) -> list[promql_parser.VectorSelector]:
    """Every selector beneath a parsed expression."""
    if isinstance(expression, promql_parser.VectorSelector):
        return [expression]
    parts: list[Any] = []
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        parts.append(getattr(expression, name, None))
    parts.extend(getattr(expression, "args", None) or ())
    return [found for part in parts if part is not None for found in selectors(part)]


def faults_of(text: str, known: dict[str, dict[str, set[str]]]) -> list[str]:
    """What in the expression is not in the scrapes: metrics, labels, and values of labels."""
    try:
        expression = promql_parser.parse(text.replace("$__rate_interval", "1m"))
    except ValueError as error:
        return [str(error)]
    faults, labels = [], set(TARGET_LABELS)
    found = selectors(expression)
    for selector in found:
        if selector.name not in known:
            faults.append(f"there is no {selector.name}")
            continue
        labels |= set(known[selector.name])
        for matcher in selector.matchers.matchers:
            values = known[selector.name].get(matcher.name)
            if values is None and matcher.name not in TARGET_LABELS:
                faults.append(f"{selector.name} has no label {matcher.name}")
            elif values is not None and not matcher.value.startswith("$"):
                # A code that did not come up in the small job is none that cannot come up.
                possible = (
                    values | {code.name for code in grpc.StatusCode} if matcher.name == "code" else values
                )
                wanted = (
                    matcher.value.split("|")
                    if "=~" in str(matcher.op) or "Re" in str(matcher.op)
                    else [matcher.value]
                )
                faults += [f"{matcher.name} is never {one}" for one in wanted if one not in possible]
    grouped = re.findall(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)", text)
    for label in {name.strip() for group in grouped for name in group.split(",") if name.strip()}:
        if label not in labels:
            faults.append(f"it groups by {label}, which nothing in it has")
    if not found:
        faults.append("it selects nothing")
    return faults


@pytest.fixture(scope="module")
def known(seen: Seen) -> dict[str, dict[str, set[str]]]:
    # Gauges of what this job does not do, such as to scale by itself, and all of parameter servers, have no
    # samples, only declared labels.
    declared: dict[str, dict[str, set[str]]] = {
        metric.name: {label: set() for label in metric.labels}
        for metric in catalogue.METRICS
        if metric.kind == "gauge" or metric.name.startswith("elastane_job_slots_")
    }
    return declared | seen.after.labels() | seen.agent.labels()


def test_alert_rules_name_what_exists(known: dict[str, dict[str, set[str]]]) -> None:
    faults = {rule["alert"]: faults_of(rule["expr"], known) for rule in rules()}
    assert {name: found for name, found in faults.items() if found} == {}
    for rule in rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical"), rule
        texts = " ".join(rule["annotations"].values())
        used = set(re.findall(r"\$labels\.(\w+)", texts))
        available = set(TARGET_LABELS)
        for selector in selectors(promql_parser.parse(rule["expr"])):
            available |= set(known[selector.name])
        assert used <= available, (rule["alert"], used - available)


def test_dashboard_names_what_exists(known: dict[str, dict[str, set[str]]]) -> None:
    faults = {f"{title}: {text}": faults_of(text, known) for title, text, _ in panels()}
    assert {name: found for name, found in faults.items() if found} == {}
    for title, text, legend in panels():
        used = set(re.findall(r"\{\{(\w+)\}\}", legend))
        available = set(TARGET_LABELS)
        for selector in selectors(promql_parser.parse(text.replace("$__rate_interval", "1m"))):
            available |= set(known[selector.name])
        assert used <= available, (title, legend)


def test_dashboard_can_be_imported(known: dict[str, dict[str, set[str]]]) -> None:
    dashboard = json.loads((OBSERVABILITY / "grafana-dashboard.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids) and dashboard["uid"] == "elastane"
    places = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & places, panel["title"]
        places |= cells
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"
    queries = [
        variable["query"]["query"]
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query"
    ]
    assert queries == ["label_values(elastane_job_phase, job_name)"]
    assert "job_name" in known["elastane_job_phase"]


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("elastane_job_stepp > 1", "there is no elastane_job_stepp"),
        ('elastane_job_phase{phaze="running"} == 1', "elastane_job_phase has no label phaze"),
        ('elastane_job_phase{phase="runing"} == 1', "phase is never runing"),
        ('elastane_job_ring_stage{stage=~"preparing|lost"} == 1', "stage is never lost"),
        ("sum by (task) (elastane_job_tasks)", "it groups by task, which nothing in it has"),
        ("rate(elastane_job_step[1m]", "parse"),
        ("rate(elastane_job_step_seconds[1m])", "there is no elastane_job_step_seconds"),
    ],
)
def test_a_wrong_expression_is_found(
    known: dict[str, dict[str, set[str]]], expression: str, fault: str
) -> None:
    assert any(fault in found for found in faults_of(expression, known)) or fault == "parse"
    assert faults_of(expression, known) != []


def test_the_rule_of_the_operator_has_the_same_groups() -> None:
    overlay = Path(__file__).parents[2] / "deploy" / "kubernetes" / "overlays" / "monitoring"
    rule = yaml.safe_load((overlay / "prometheus-rule.yaml").read_text())
    assert rule["spec"] == yaml.safe_load((OBSERVABILITY / "alerts.yaml").read_text())
