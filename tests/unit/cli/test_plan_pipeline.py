"""`elastane plan --profile`: plans from files without a master, and what is said about bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_planner.cluster import Cluster, Device
from elastane_planner.plan_csv import read_schedule, stages_of
from elastane_planner.profile import Profile, UnitProfile

ALWAYS = ["--micro-batches", "8", "--bandwidth", "1GB", "--budget", "60"]


def _plan(*options: object) -> Result:
    return CliRunner().invoke(
        build_app(), ["plan", *map(str, options)], env={"ELASTANE_MASTER": "127.0.0.1:9"}
    )


def _document(*options: object) -> dict[str, Any]:
    found = _plan(*options, "--json")
    assert found.exit_code == 0, found.output
    document: dict[str, Any] = json.loads(found.stdout)
    return document


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Eight units of 3 ms whose parameters are too large to be summed over replicas."""
    units = tuple(
        UnitProfile(
            f"layer{index}",
            0.001,
            0.002,
            parameter_bytes=1_000_000,
            optimizer_bytes=2_000_000,
            boundary_bytes=1000,
            activation_bytes=100_000,
        )
        for index in range(8)
    )
    path = tmp_path / "profile.json"
    path.write_bytes(Profile(units).to_json())
    return path


def test_equal_units_become_equal_stages(profile: Path) -> None:
    document = _document("--profile", profile, "--devices", 4, "--stages", "4", *ALWAYS)
    stages = document["plan"]["stages"]
    assert [(stage["first_unit"], stage["end_unit"]) for stage in stages] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert len({stage["devices"][0] for stage in stages}) == 4
    assert document["step_seconds"] == pytest.approx((8 + 3) * 0.006, rel=0.01)
    assert document["bubble"] == pytest.approx(3 / 11, rel=0.01)
    # weights, optimizer, 8 gradients of 2 units, and a piece in which they are added
    memory = document["memory"][stages[0]["devices"][0]]
    assert memory["weights"] + memory["optimizer"] + memory["gradients"] == 2_000_000 * (1 + 2 + 8) + 2**20
    assert document["slowest"]["kind"] == "blocks"
    assert document["search"] and document["baselines"] == []


def test_the_text_has_stages_step_memory_and_reason(profile: Path) -> None:
    found = _plan("--profile", profile, "--devices", 2, "--memory", "64MiB", "--baselines", *ALWAYS)
    assert found.exit_code == 0, found.output
    for words in (
        "predicted, bubble",
        "2 devices, 8 micro-batches",
        "of 64 MiB",
        "slowest: stage",
        "% of the step",
        "search: ",
        "a death: of a device of stages 0, 1 the job goes back",
        "COMPARED WITH",
        "data parallel",
        "GPipe",
        "PipeDream",
        "HetPipe",
    ):
        assert words in found.stdout, words


def test_the_shadow_is_shown(profile: Path) -> None:
    found = _plan("--profile", profile, "--devices", 2, "--stages", 2, "--shadow", 1, *ALWAYS)
    assert "SHADOWS" in found.stdout and "a death: costs the step in flight" in found.stdout


def test_memory_decides_how_activations_are_kept(profile: Path) -> None:
    roomy = _document("--profile", profile, "--devices", 2, "--stages", 2, *ALWAYS)
    needed = max(need["total"] for need in roomy["memory"].values())
    tight = _document(
        "--profile", profile, "--devices", 2, "--stages", 2, "--memory", str(needed - 1000), *ALWAYS
    )
    assert "checkpoint" in [stage["memory"] for stage in tight["plan"]["stages"]]
    assert all(need["total"] < needed for need in tight["memory"].values())


def test_what_does_not_fit_exits_with_1_and_names_the_devices_that_would_do(profile: Path) -> None:
    found = _plan("--profile", profile, "--devices", 2, "--memory", "20MB", "--json", *ALWAYS)
    assert found.exit_code == 1
    error = json.loads(found.stderr)
    assert (error["code"], error["reason"]) == ("ELA470", "does_not_fit")
    least = int(error["facts"]["devices"])
    assert least > 2 and f"{least} devices" in error["hint"]
    enough = _plan("--profile", profile, "--devices", least, "--memory", "20MB", *ALWAYS)
    assert enough.exit_code == 0, enough.output


def test_a_cluster_file_with_unlike_devices(profile: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.json"
    devices = [Device("slow", speed=0.25), Device("fast")]
    cluster.write_bytes(Cluster.uniform(devices, 1e9).to_json())
    document = _document("--profile", profile, "--cluster", cluster, "--stages", 2, "--micro-batches", 8)
    units = {
        stage["devices"][0]: stage["end_unit"] - stage["first_unit"] for stage in document["plan"]["stages"]
    }
    assert units["fast"] > units["slow"]


def test_a_plan_is_kept_where_nothing_is_gained(profile: Path, tmp_path: Path) -> None:
    first = _plan("--profile", profile, "--devices", 4, *ALWAYS, "--json")
    kept = tmp_path / "plan.json"
    kept.write_text(first.stdout)
    again = _document("--profile", profile, "--devices", 4, "--keep", kept, *ALWAYS)
    assert again["plan"] == json.loads(first.stdout)["plan"]
    fewer = _document("--profile", profile, "--devices", 3, "--keep", kept, *ALWAYS)
    assert any("gone: device3" in note for note in fewer["notes"])


def test_picture_and_schedule_are_written(profile: Path, tmp_path: Path) -> None:
    svg, plain, full = tmp_path / "step.svg", tmp_path / "plain.csv", tmp_path / "full.csv"
    options = ("--profile", profile, "--devices", 2, "--stages", 2, *ALWAYS)
    assert _plan(*options, "--gantt", svg, "--csv", plain).exit_code == 0
    assert _plan(*options, "--csv", full, "--transfers").exit_code == 0
    assert svg.read_text().startswith("<svg") and "backward of micro-batch 7" in svg.read_text()
    assert read_schedule(plain.read_text()) == read_schedule(full.read_text())
    assert "SEND" in full.read_text() and "SEND" not in plain.read_text()
    assert len(stages_of(read_schedule(plain.read_text()))) == 2


def test_a_schedule_that_was_written_is_compared(profile: Path, tmp_path: Path) -> None:
    order = tmp_path / "order.csv"
    options = ("--profile", profile, "--devices", 2, "--stages", 2, *ALWAYS)
    assert _plan(*options, "--csv", order, "--transfers").exit_code == 0
    document = _document(*options, "--schedule", order)
    (other,) = document["baselines"]
    assert other["name"] == "order.csv" and other["problem"] == ""
    assert other["step_seconds"] == pytest.approx(document["step_seconds"])
    order.write_text("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n")  # one micro-batch at a time
    given = ("--profile", profile, "--devices", 2, "--bandwidth", "1GB", "--micro-batches", 2)
    (slow,) = _document(*given, "--schedule", order)["baselines"]
    assert slow["step_seconds"] == pytest.approx(2 * 8 * 0.003, rel=0.01)
    assert slow["bubble"] == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"0F0,0B0\n", "2 of 16 blocks"),
        (b"1F0,1B0\n", "numbered from 0"),
        (b"", "numbered from 0"),
        (b"0F0,0W0\n", "0W0"),
        (b"\xff\xfe", "not text"),
        (b"0F0,0B0\n1F0,1B0\n2F0,2B0\n", "needs device 2 of 2"),
    ],
)
def test_bad_schedules(profile: Path, tmp_path: Path, text: bytes, said: str) -> None:
    order = tmp_path / "order.csv"
    order.write_bytes(text)
    found = _plan("--profile", profile, "--devices", 2, "--schedule", order, *ALWAYS)
    assert found.exit_code == 2 and said in " ".join(found.stderr.split()), found.stderr


def test_a_graph_of_pipedream(tmp_path: Path) -> None:
    graph = tmp_path / "graph.txt"
    lines = [
        f"node{n} -- Linear -- forward_compute_time=1.0, backward_compute_time=2.0, "
        "activation_size=100.0, parameter_size=1000.0"
        for n in range(1, 7)
    ]
    graph.write_text("\n".join([*lines, *(f"\tnode{n} -- node{n + 1}" for n in range(1, 6))]))
    document = _document("--profile", graph, "--devices", 2, "--units-max", 3, *ALWAYS)
    assert document["plan"]["stages"][-1]["end_unit"] == 3


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("", 2, "not a profile"),
        ("{", 2, "not a profile"),
        ('{"version": 99, "units": []}', 2, "version 99"),
        ('{"version": 1, "units": []}', 2, "1 to 100000 units"),
        ('{"version": 1, "units": [{"name": "a", "forward_seconds": -1}]}', 2, "forward_seconds of unit 0"),
        ('{"version": 1, "units": [{"name": "a", "colour": 3}]}', 2, "colour"),
    ],
)
def test_bad_profiles(tmp_path: Path, text: str, code: int, said: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    found = _plan("--profile", path, "--devices", 2, *ALWAYS)
    assert found.exit_code == code and "ELA470" in found.stderr and said in found.stderr


def test_a_profile_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(b"\xff\xfe\x00")
    found = _plan("--profile", path, "--devices", 2, *ALWAYS)
    assert found.exit_code == 2 and "not text" in found.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--devices", 2], "--micro-batches"),
        (["--micro-batches", 4], "--devices N and --cluster"),
        (["--devices", 2, "--micro-batches", 0], "--micro-batches"),
        (["--devices", 2, "--micro-batches", 4, "--stages", "3:2"], "--stages"),
        (["--devices", 2, "--micro-batches", 4, "--memory", "much"], "not a size such as 512M"),
        (["--devices", 2, "--micro-batches", 4, "--bandwidth", "0"], "no rate such as 1.25GB"),
        (["--devices", 2, "--micro-batches", 4, "--gantt", "/nowhere/at/all.svg"], "not a folder"),
        (["--devices", 2, "--micro-batches", 4, "job"], "without a job"),
    ],
)
def test_bad_options(profile: Path, options: list[object], said: str) -> None:
    found = _plan("--profile", profile, *options)
    assert found.exit_code == 2, found.output
    assert said in found.stderr


def test_more_stages_than_there_can_be(profile: Path) -> None:
    found = _plan("--profile", profile, "--devices", 2, "--stages", "3:4", *ALWAYS)
    assert found.exit_code == 1 and "2 at most" in found.stderr


def test_a_cluster_without_links_between_its_devices(profile: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.json"
    cluster.write_bytes(Cluster.uniform([Device("a"), Device("b")], 0.0).to_json())
    found = _plan("--profile", profile, "--cluster", cluster, "--micro-batches", 8)
    assert found.exit_code == 1 and "a | b" in found.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "is no plan"),
        ('{"plan": {"stages": []}}', "0 units"),
        (
            '{"plan": {"stages": [{"first_unit": 0, "end_unit": 3, "devices": ["device0"]}]}}',
            "3 units, the profile has 8",
        ),
        (
            '{"plan": {"stages": [{"first_unit": 0, "end_unit": 8, "devices": ["device0"], "memory": "x"}]}}',
            "plain, checkpoint or swap",
        ),
    ],
)
def test_bad_plans_to_keep(profile: Path, tmp_path: Path, text: str, said: str) -> None:
    kept = tmp_path / "plan.json"
    kept.write_text(text)
    found = _plan("--profile", profile, "--devices", 2, "--keep", kept, *ALWAYS)
    assert found.exit_code == 2 and said in found.stderr


@pytest.mark.parametrize(
    "words",
    [
        *(["--devices", 2], ["--micro-batches", 2], ["--stages", 2], ["--memory", 2], ["--units-max", 2]),
        *(["--bandwidth", "1GB"], ["--shadow", 0], ["--horizon", 5], ["--budget", 1]),
        *(["--baselines"], ["--transfers"], ["--gantt", "step.svg"], ["--csv", "step.csv"]),
        ["--schedule", __file__],
    ],
    ids=lambda words: words[0],
)
def test_options_of_pipelines_need_a_profile(words: list[object]) -> None:
    found = _plan(*words)
    assert found.exit_code == 2 and "with --profile" in found.stderr and str(words[0]) in found.stderr


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["--horizon", 5], "--keep"),
        (["--transfers"], "--csv"),
        (["--memory", "2GiB"], "--devices"),
        (["--bandwidth", "1GB"], "--devices"),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else words,
)
def test_options_that_say_nothing_without_another(
    profile: Path, tmp_path: Path, words: list[object], needed: str
) -> None:
    cluster = tmp_path / "cluster.json"
    cluster.write_bytes(Cluster.uniform([Device("a"), Device("b")], 1e9).to_json())
    found = _plan("--profile", profile, "--cluster", cluster, "--micro-batches", 8, *words)
    assert found.exit_code == 2 and f"is for a plan with {needed}" in found.stderr
