"""The options of `elastane master` are settings, and every setting that is passed on by name is one."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from elastane_master.cli import app, main
from elastane_master.decisions.runs.queue_shares import queue_of
from elastane_master.security.settings import SecuritySettings
from elastane_master.settings import MasterSettings

NOT_A_SETTING = {"version"}
"""Options that are answered at once."""


def test_every_option_is_the_setting_of_its_name() -> None:
    options = set(inspect.signature(main).parameters) - NOT_A_SETTING
    master, security = set(MasterSettings.model_fields) - {"security"}, set(SecuritySettings.model_fields)
    assert not options - master - security, "such an option would be dropped without a word"
    assert not options & master & security


def test_help_loads_no_part_of_a_master() -> None:
    loaded = "import sys; from elastane_master.cli import app; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-P", "-c", loaded], check=True, capture_output=True, text=True)
    assert not {"pydantic", "redis", "grpc", "aiohttp", "rich"} & set(names.stdout.split())


def test_the_queue_of_runs_is_ordered_as_the_operator_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTANE_OWNER_WEIGHTS", "research=3, sales=0.5")
    monkeypatch.setenv("ELASTANE_STARVATION_SECONDS", "60")
    monkeypatch.setenv("ELASTANE_RUNS_WAITING_MAX", "7")
    settings = MasterSettings().service_options().settings
    assert (settings.weights, settings.starvation_seconds, settings.runs_waiting_max) == (
        {"research": 3.0, "sales": 0.5},
        60.0,
        7,
    )


def test_a_scheduling_policy_is_one_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MasterSettings().service_options().settings.scheduling_policy == "fair-share"
    monkeypatch.setenv("ELASTANE_SCHEDULING_POLICY", "foresight")
    monkeypatch.setenv("ELASTANE_RESHAPE_SECONDS", "5")
    settings = MasterSettings().service_options().settings
    assert (settings.scheduling_policy, settings.reshape_seconds) == ("foresight", 5.0)
    with pytest.raises(ValidationError, match=r"one of fair-share, fifo, .*, foresight"):
        MasterSettings(scheduling_policy="magic")


QUEUES = """
[[queue]]
name = "research"
weight = 3
owners = ["ann", "team-*"]
guaranteed = { "*H100*" = 4, cpu = 2 }

[[queue]]
name = "default"
"""


def test_queues_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "queues.toml"
    file.write_text(QUEUES)
    monkeypatch.setenv("ELASTANE_SCHEDULING_QUEUES", str(file))
    with pytest.raises(ValidationError, match="needs a --scheduling-policy"):
        MasterSettings()
    research, default = MasterSettings(scheduling_policy="maxmin").service_options().settings.queues
    assert (research.name, research.weight, research.owners) == ("research", 3.0, ("ann", "team-*"))
    assert [research.guaranteed_of(name) for name in ("NVIDIA H100 80GB", "cpu", "gpu")] == [4, 2, 0]
    assert (default.name, default.weight, default.guaranteed) == ("default", 1.0, {})
    assert [queue_of((research, default), owner) for owner in ("ann", "team-b", "bob")] == [
        "research", "research", "default",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "missing required field `queue`"),
        ("queue = []", "0 queues"),
        ("[[queue]]\nname = 'a'", "has no owners"),
        ("[[queue]]\nname = ''\nowners = ['*']", "needs a name"),
        ("[[queue]]\nname = 'a'\nowners = ['*']\nweight = 0", "weight of queue a"),
        ("[[queue]]\nname = 'a'\nowners = ['*']\nweight = nan", "weight of queue a"),
        ("[[queue]]\nname = 'a'\nowners = ['*']\nguaranteed = { cpu = -1 }", "-1 slots of cpu"),
        ("[[queue]]\nname = 'a'\nowners = ['*']\nguaranteed = 4", "Expected `object`"),
        ("[[queue]]\nname = 'a'\nowners = ['*']\nsize = 4", "unknown field `size`"),
        ("[[queue]]\nname = 'a'\nowners = ['*']\n" * 2, "is there twice"),
        ("[[queue", "Expected"),
    ],
)
def test_a_file_of_queues_that_cannot_be_used_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "queues.toml"
    file.write_text(text)
    with pytest.raises(ValidationError) as refused:
        MasterSettings(scheduling_policy="maxmin", scheduling_queues=file)  # type: ignore[arg-type]
    assert problem in str(refused.value) and "queues.toml" in str(refused.value)


@pytest.mark.parametrize(
    "weights", ["research=0", "research=-1", "research=nan", "research=inf", "research", "=2"]
)
def test_a_weight_is_a_positive_number(weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTANE_OWNER_WEIGHTS", weights)
    with pytest.raises(ValueError, match="owner_weights"):
        MasterSettings()


def test_a_bad_value_is_named_by_where_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTANE_JOBS_MAX", "0")
    refused = CliRunner().invoke(app, ["--listen", "nowhere"])
    assert refused.exit_code == 2
    assert "ELASTANE_JOBS_MAX: Input should be" in refused.stderr
    assert "--listen: must be HOST:PORT" in refused.stderr
