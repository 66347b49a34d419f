"""The options of `elastane master` are settings, and every setting that is passed on by name is one."""

from __future__ import annotations

import inspect

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from elastane_master.cli import app, main
from elastane_master.security.settings import SecuritySettings
from elastane_master.settings import MasterSettings

NOT_A_SETTING = {"version"}
"""Options that are answered at once."""


def test_every_option_is_the_setting_of_its_name() -> None:
    options = set(inspect.signature(main).parameters) - NOT_A_SETTING
    master, security = set(MasterSettings.model_fields) - {"security"}, set(SecuritySettings.model_fields)
    assert not options - master - security, "such an option would be dropped without a word"
    assert not options & master & security


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
