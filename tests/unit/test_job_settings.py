"""The settings of a job: told once, and so the same in the API, in `elastane run` and in an ElasticJob."""

from __future__ import annotations

import math
import typing
from pathlib import Path

import pytest
import typer
import yaml

from elastane_cli.commands.catalogue import load
from elastane_cli.commands.job_options import job_parameters, job_settings, settings_message
from elastane_operator.decisions.spec import JobSpec, Workers
from elastane_proto import message_codec
from elastane_proto.job_settings import DEFAULTS, SETTINGS, TYPES, JobSettings, out_of_bounds
from elastane_proto.v1 import job_pb2

CRD = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "crd" / "elasticjob.yaml"
VALUES: dict[str, object] = {each.name: each.default for each in job_parameters()}


def test_every_field_of_the_message_is_a_setting_and_the_other_way_round() -> None:
    fields = {field.name for field in job_pb2.JobSettings.DESCRIPTOR.fields}
    assert {name.removesuffix("_seconds") for name in SETTINGS} == fields


def test_the_defaults_are_within_their_bounds_and_come_back_from_the_wire() -> None:
    assert list(out_of_bounds(DEFAULTS)) == []
    assert message_codec.read(JobSettings, settings_message(DEFAULTS), zero_is_default=True) == DEFAULTS


def test_a_message_that_says_nothing_has_the_defaults_but_for_its_flags() -> None:
    settings = message_codec.read(JobSettings, job_pb2.JobSettings(ests=1), zero_is_default=True)
    differing = {name for name in SETTINGS if getattr(settings, name) != getattr(DEFAULTS, name)}
    assert differing == {name for name, kind in TYPES.items() if kind is bool and getattr(DEFAULTS, name)}


@pytest.mark.parametrize("name", [name for name, kind in TYPES.items() if kind is float])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_no_duration_is_negative_or_without_end(name: str, value: float) -> None:
    assert SETTINGS[name].out_of_bounds(value)


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("ests", 0, "at least 1"),
        ("ests", 65_537, "at most 65536"),
        ("lease_min_seconds", 0.0, "more than 0"),
        ("join_window_seconds", 0.0, ""),
        ("idle_max_seconds", 2e9, "at most 1e+09"),
    ],
)
def test_bounds_in_words(name: str, value: float, bound: str) -> None:
    assert SETTINGS[name].out_of_bounds(value) == bound


def test_the_command_lines_defaults_are_those_of_the_settings() -> None:
    settings = job_settings({**VALUES, "ests": 4})
    assert settings == JobSettings(ests=4, workers_min=1, workers_max=4)


def test_options_reach_their_setting() -> None:
    given = {
        "ests": 4,
        "workers": "2:3",
        "no_audit_samples": True,
        "lease_min_seconds": 9.0,
        "sentinel_steps": 50,
        "ps_staleness": 0,
        "ps_journal": True,
    }
    settings = job_settings({**VALUES, **given})
    assert settings == JobSettings(
        4,
        2,
        3,
        audit_samples=False,
        lease_min_seconds=9.0,
        sentinel_steps=50,
        ps_staleness=0,
        ps_journal=True,
    )
    message = settings_message(settings)
    assert message.lease_min.ToSeconds() == 9 and not message.HasField("seed")
    assert message.determinism == job_pb2.DETERMINISM_LEVEL_D1
    assert message.HasField("ps_staleness") and message.ps_staleness == 0 and message.ps_journal


def test_stages_of_a_pipeline_are_a_range_or_one_number() -> None:
    settings = job_settings({**VALUES, "ests": 4, "pipeline": "2:3", "pipeline_shadows": 1})
    assert settings == JobSettings(
        4, workers_max=4, pipeline_stages_min=2, pipeline_stages_max=3, pipeline_shadows=1
    )
    one = job_settings({**VALUES, "ests": 4, "pipeline": "2"})
    assert one is not None and (one.pipeline_stages_min, one.pipeline_stages_max) == (2, 2)
    with pytest.raises(typer.BadParameter, match="at most MAX"):
        job_settings({**VALUES, "ests": 4, "pipeline": "3:2"})


def test_without_ests_there_are_no_settings() -> None:
    assert job_settings(VALUES) is None


def test_limits_of_workers_are_checked_before_anything_starts() -> None:
    with pytest.raises(typer.BadParameter, match="at most 4"):
        job_settings({**VALUES, "ests": 4, "workers": "5:6"})


def test_every_option_of_the_table_is_one_of_the_command_with_its_help_and_default() -> None:
    options = {parameter.opts[0]: parameter for parameter in load("run").params}
    for name, setting in SETTINGS.items():
        if setting.option and name != "ests":
            option = options[setting.option]
            assert option.help == setting.help
            assert option.default == (False if TYPES[name] is bool else getattr(DEFAULTS, name)), name


def test_an_elastic_jobs_defaults_are_those_of_the_settings() -> None:
    version = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    checkpoint, spot = spec["checkpoint"]["properties"], spec["spot"]["properties"]
    assert spec["workers"]["properties"]["min"]["default"] == Workers(max=1).min == DEFAULTS.workers_min
    assert spec["torchThreads"]["default"] == DEFAULTS.torch_threads
    assert spec["determinism"]["default"].lower() == DEFAULTS.determinism
    assert spec["recoveryPolicy"]["default"].lower() == DEFAULTS.recovery
    assert spec["maxWaitSeconds"]["default"] == DEFAULTS.max_wait_seconds
    assert checkpoint["intervalSteps"]["default"] == DEFAULTS.checkpoint_interval_steps
    assert checkpoint["keep"]["default"] == DEFAULTS.checkpoint_keep
    assert spot["currency"]["default"] == DEFAULTS.currency
    fields = JobSpec.__struct_fields__[-len(JobSpec.__struct_defaults__) :]
    own = dict(zip(fields, JobSpec.__struct_defaults__, strict=True))
    assert (own["max_wait_seconds"], own["torch_threads"]) == (
        DEFAULTS.max_wait_seconds,
        DEFAULTS.torch_threads,
    )
    assert own["recovery_policy"].lower() == DEFAULTS.recovery
    assert own["determinism"].lower() == DEFAULTS.determinism


def test_choices_are_those_of_the_api() -> None:
    for name in ("determinism", "recovery"):
        enum = job_pb2.JobSettings.DESCRIPTOR.fields_by_name[name].enum_type
        words = {value.name.rpartition("_")[2].lower() for value in enum.values if value.number}
        assert set(typing.get_args(TYPES[name])) == words
