"""`elastane.save_model` in real workers: one whole model, also if the leader dies while it uploads it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_common.artifacts import ArtifactManifest, local_files, verify, write_artifacts
from integration.forked_cli import ForkedCommands
from slow import slow

SOURCES = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "saves_model.py"
PATH = os.pathsep.join(
    str(SOURCES / root) for root in ("common", "proto", "shard_service", "scheduler", "master", "worker")
)
ELASTIC = ("run", "--ests", "2", "--workers", "2")


@pytest.fixture
def elastic(forked_commands: ForkedCommands) -> Callable[..., tuple[ArtifactManifest, str]]:
    """Trains with two workers, and returns as `saved_by`."""

    def train(tmp_path: Path, when: str, **variables: str) -> tuple[ArtifactManifest, str]:
        environment = variables_of(tmp_path) | variables
        command = (*ELASTIC, str(SCRIPT), str(tmp_path), when)
        return saved_by(
            tmp_path, forked_commands.run(*command, environment=environment, timeout_seconds=120.0)
        )

    return train


def variables_of(tmp_path: Path) -> dict[str, str]:
    """Where the model belongs, and a terminal that breaks no line."""
    return {"MODEL_URL": str(tmp_path / "model"), "COLUMNS": "300"}


def saved_by(tmp_path: Path, done: subprocess.CompletedProcess[str]) -> tuple[ArtifactManifest, str]:
    """The model that is there after a training, and what was written to the terminal."""
    assert done.returncode == 0, done.stdout + done.stderr
    return saved_in(tmp_path), done.stdout + done.stderr


def saved_in(tmp_path: Path) -> ArtifactManifest:
    """The model that is there; nothing else is."""
    url = str(tmp_path / "model")
    manifest = verify(url)
    (entry,) = manifest.located()
    data = (Path(url) / entry.path).read_bytes()
    assert list(torch.load(io.BytesIO(data), weights_only=True)) == ["weight", "bias"]
    files = sorted(path.name for path in Path(url).rglob("*") if path.is_file())
    assert files == ["manifest.json", "weights.pt"]  # nothing is left of earlier models
    return manifest


def test_each_epochs_model_replaces_the_one_before(tmp_path: Path, elastic) -> None:
    manifest, said = elastic(tmp_path, "each")
    assert said.count("the model is saved") == 3
    # Both workers know where the last one is.
    assert said.count(f"saved: '{tmp_path}/model/{manifest.folder}'") == 2


@pytest.mark.parametrize("when", ["after", pytest.param("last", marks=slow)])
def test_a_leader_that_dies_while_it_uploads_costs_no_model(tmp_path: Path, when: str, elastic) -> None:
    (tmp_path / "KILL").touch()
    _, said = elastic(tmp_path, when, ELASTANE_MODEL_TAKEOVER_SECONDS="3")
    assert not (tmp_path / "KILL").exists() and "was killed by SIGKILL" in said
    assert said.count("the model is saved") == 1


@slow
def test_stock_ddp_saves_the_same_files_once(tmp_path: Path, elastic) -> None:
    for name in ("ddp", "elastic"):
        (tmp_path / name).mkdir()
    lines: list[str] = []
    run_stock_ddp(
        tmp_path / "stock",
        [str(SCRIPT), str(tmp_path / "ddp"), "after"],
        processes=2,
        environment=variables_of(tmp_path / "ddp"),
        on_line=lines.append,
    )
    stock, said = saved_in(tmp_path / "ddp"), "\n".join(lines)
    assert said.count("saved: '") == 2 and said.count("saved: ''") == 1, "one rank has saved it"
    assert stock == elastic(tmp_path / "elastic", "after")[0]


ZOMBIE = """
import os, signal, sys
import elastane
from elastane_common.storage import Folder

write = Folder.write
def stopped(folder, name, chunks):
    if name == "manifest.json":  # it has looked, and nobody was there
        Folder.write = write
        os.kill(os.getpid(), signal.SIGSTOP)
    write(folder, name, chunks)
Folder.write = stopped
elastane.save_model(sys.argv[1])
"""


def test_a_process_of_a_launch_that_was_given_up_writes_late_and_changes_nothing(tmp_path: Path) -> None:
    """It stands still before its last write; meanwhile the next launch of the run has saved its model."""
    url = str(tmp_path / "model")
    for name in ("old", "new"):
        (tmp_path / name).write_text(name)
    environment = {**os.environ, "PYTHONPATH": PATH, **variables_of(tmp_path)}
    zombie = subprocess.Popen(
        [sys.executable, "-c", ZOMBIE, str(tmp_path / "old")],
        env=environment | {"ELASTANE_RUN_FENCE": "7"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        write_artifacts(url, local_files(tmp_path / "new"), fence=8)
        os.kill(zombie.pid, signal.SIGCONT)
        _, said = zombie.communicate(timeout=60)
    finally:
        zombie.kill()
    assert zombie.returncode != 0 and "a later launch of the run has written" in said
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert (tmp_path / "model" / manifest["folder"] / "new").read_text() == "new"
    assert verify(url).fence == manifest["fence"] == 8
