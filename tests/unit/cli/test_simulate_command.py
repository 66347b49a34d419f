"""`elastane simulate`: its table, JSON, picture, and what it refuses."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_scheduler.policies.catalogue import POLICIES

TRACE = "name,arrival_seconds,ests,steps,est_seconds\na,0,4,100,v100=0.2\nb,1,4,50,v100=0.2\n"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["simulate", *arguments])


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return str(path)


def test_a_table_has_a_row_for_each_policy(trace: str) -> None:
    result = invoke(trace, "--pool", "v100=4", "--policy", "all")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["policy", *POLICIES]
    for heading in ("average s", "p50", "p90", "p99", "makespan", "rho max", "use", "changes", "money"):
        assert heading in lines[0]


def test_json_has_the_figures(trace: str) -> None:
    arguments = (trace, "--pool", "v100=4", "-p", "fifo", "--cost", "0,0,0", "--price", "v100=3600", "--json")
    document = json.loads(invoke(*arguments).stdout)
    (report,) = document["policies"]
    assert document["jobs"] == 2
    assert report["average"] == pytest.approx((20 + 29) / 2)
    assert report["makespan"] == pytest.approx(30)
    assert report["money"] == pytest.approx(30 * 4)


def test_two_runs_print_the_same(tmp_path: Path) -> None:
    def run(name: str) -> tuple[str, bytes]:
        picture = tmp_path / name
        arguments = ("generated", "--jobs", "20", "--seed", "3", "--noise", "0.5", "--plot", str(picture))
        return invoke(*arguments).stdout, picture.read_bytes()

    assert run("one.svg") == run("two.svg")
    ElementTree.fromstring(run("one.svg")[1])


def test_denser_arrivals_and_other_costs_make_jobs_longer() -> None:
    def average(*arguments: str) -> float:
        document = json.loads(invoke("generated", "--jobs", "30", "-p", "srtf", "--json", *arguments).stdout)
        return float(document["policies"][0]["average"])

    assert average() < average("--dense", "4")
    assert average() < average("--cost", "60,20,20")


def test_reclaimed_devices_make_jobs_longer(trace: str, tmp_path: Path) -> None:
    spot = tmp_path / "spot.json"
    spot.write_text('{"metadata": {"gap_seconds": 10}, "data": [0, 3]}')
    arguments = (trace, "--pool", "v100=4", "-p", "maxmin", "--json")
    kept = json.loads(invoke(*arguments).stdout)["policies"][0]["makespan"]
    document = json.loads(invoke(*arguments, "--reclaim", str(spot)).stdout)
    assert document["policies"][0]["makespan"] > kept


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", "lottery"), ("lottery", "foresight")),
        (("--cost", "1,2"), ("lacks",)),
        (("--cost", "nan,0,0"), ("start",)),
        (("--pool", "p100=4"), ("line 2", "v100")),
        (("--price", "k80=1"), ("k80",)),
        (("--artifact",), ("published",)),
        (("--dense", "0"), ("--dense",)),
        (("--times", "trace.csv"), ("does not exist",)),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], words: tuple[str, ...], trace: str) -> None:
    pool = () if "--pool" in arguments else ("--pool", "v100=4")
    result = invoke(trace, *pool, *arguments)
    assert result.exit_code == 2
    for word in words:
        assert word in " ".join(result.stderr.replace("│", " ").split())


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(TRACE + "c,-5,4,50,v100=0.2\n")
    result = invoke(str(path), "--pool", "v100=4")
    assert result.exit_code == 2
    assert "line 4: arrival_seconds is '-5'" in " ".join(result.stderr.replace("│", " ").split())


def test_a_file_that_is_not_there() -> None:
    result = invoke("nowhere.csv")
    assert result.exit_code == 2 and "nowhere.csv" in result.stderr


def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_played(
    trace: str, tmp_path: Path
) -> None:
    refused = invoke(trace, "--pool", "v100=4", "--plot", str(tmp_path / "none" / "run.svg"))
    assert refused.exit_code == 2 and "--plot" in refused.stderr and not refused.stdout
    refused = invoke(trace, "--pool", "v100=4", "--plot", str(tmp_path))
    assert refused.exit_code == 2 and "--plot" in refused.stderr


def test_a_reclaim_that_is_no_text_is_refused(trace: str, tmp_path: Path) -> None:
    (tmp_path / "spot.json").write_bytes(b"\xff\xfe\xfa")
    refused = invoke(trace, "--pool", "v100=4", "--reclaim", str(tmp_path / "spot.json"))
    assert refused.exit_code == 2 and "cannot be read" in refused.stderr


def test_a_job_with_a_deadline_is_played_on_spot(tmp_path: Path) -> None:
    path = tmp_path / "spot.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": [16] * 200}))
    arguments = ("--spot", str(path), "--hours", "2", "--deadline", "1.5", "--spot-price", "0.25")
    document = json.loads(invoke(*arguments, "--json").stdout)
    wide, uniform = document["spot"]
    assert (wide["policy"], uniform["policy"]) == ("wide-spot", "uniform-progress")
    assert wide["starts"] == uniform["starts"] == 2 and wide["late"] == uniform["late"] == 0
    # An hour on 16 machines and a cold start; two hours on 8 and a cold start.
    assert wide["cost"] == pytest.approx(0.25 * 16 * 1.1 / 16)
    assert uniform["cost"] == pytest.approx(0.25 * 8 * 2.1 / 16)
    lines = invoke(*arguments).stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["wide-spot", "x1.5"], ["uniform-progress", "x1.5"]]


def test_generated_spot_is_the_same_for_the_same_seed() -> None:
    def run(seed: int) -> str:
        return invoke("--spot", "generated", "--deadline", "1.1", "--hours", "3", "--seed", str(seed)).stdout

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("generated", "--spot", "generated"),
        ("generated", "--deadline", "1.1"),
        ("--spot", "/no/such/file"),
        ("--spot", "generated", "--deadline", "0"),
        ("--spot", "generated", "--deadline", "nan"),
        ("--spot", "generated", "--spot-price", "nan"),
        ("--spot", "generated", "--hours", "1e9"),
        ("--spot", "generated", "--workers", "17"),
    ],
    ids=" ".join,
)
def test_spot_is_refused_with_what_cannot_be(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
