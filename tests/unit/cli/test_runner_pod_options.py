"""Options of pods: what is refused, and by which name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from elastane_cli.commands import runner
from elastane_cli.commands.runner_options import ContainerChoices, PodChoices
from elastane_runner.pod_plan import Mount


@pytest.mark.parametrize(
    ("containers", "pods", "option"),
    [
        ({"image": None}, {}, "--image"),
        ({"network": "host"}, {}, "--network"),
        ({"container_engine": "unix:///x"}, {}, "--container-engine"),
        ({"memory": "much"}, {}, "--memory"),
        ({}, {"claim": ["models"]}, "--claim"),
        ({}, {"worker_secret": "=x"}, "--worker-secret"),
        ({}, {"node_selector": ["a"]}, "--node-selector"),
    ],
)
def test_what_no_pod_takes_is_refused_by_its_option(
    containers: dict[str, Any], pods: dict[str, Any], option: str
) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        PodChoices(**pods).options(ContainerChoices(**{"image": "i", **containers}))
    assert refused.value.param_hint == option


def test_choices_become_options_and_are_refused_for_other_kinds() -> None:
    choices = PodChoices(namespace="runs", claim=["models=/models"], run_secret=["s"])
    options = choices.options(ContainerChoices(image="i", memory="1G"))
    assert (options.claims, options.memory_bytes) == ((Mount("models", "/models"),), 2**30)
    assert options.run_secrets == {"s"}
    with pytest.raises(typer.BadParameter) as refused:
        choices.refuse_without_pods("process")
    assert refused.value.param_hint == "--namespace"
    PodChoices().refuse_without_pods("process")


def test_a_runner_without_credentials_for_the_api_is_refused_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    app = typer.Typer()
    runner.register(app)
    arguments = ["--kind", "kubernetes", "--image", "i", "--folder", str(tmp_path), "--host", "h"]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 3
    assert "no credentials for an API server" in refused.stderr
