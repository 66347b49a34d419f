"""`elastane.save_model` in real workers: one whole model, also if the leader dies while it uploads it."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
import torch

import patience
from elastane_common.artifacts import ArtifactManifest, verify
from slow import slow

SOURCES = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "saves_model.py"
PATH = os.pathsep.join(
    str(SOURCES / root) for root in ("common", "proto", "shard_service", "scheduler", "master", "worker")
)
ELASTIC = ("-m", "elastane_cli", "run", "--ests", "2", "--workers", "2")
DDP = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


def train(tmp_path: Path, *command: str, when: str, **variables: str) -> tuple[ArtifactManifest, str]:
    """The model that is there after a training, and what was written to the terminal."""
    url = str(tmp_path / "model")
    environment = {**os.environ, "PYTHONPATH": PATH, "MODEL_URL": url, "COLUMNS": "300", **variables}
    done = patience.run(
        [sys.executable, *command, str(SCRIPT), str(tmp_path), when],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    manifest = verify(url)
    (entry,) = manifest.located()
    data = (Path(url) / entry.path).read_bytes()
    assert list(torch.load(io.BytesIO(data), weights_only=True)) == ["weight", "bias"]
    files = sorted(path.name for path in Path(url).rglob("*") if path.is_file())
    assert files == ["manifest.json", "weights.pt"]  # nothing is left of earlier models
    return manifest, done.stdout + done.stderr


def test_each_epochs_model_replaces_the_one_before(tmp_path: Path) -> None:
    manifest, said = train(tmp_path, *ELASTIC, when="each")
    assert said.count("the model is saved") == 3
    # Both workers know where the last one is.
    assert said.count(f"saved: '{tmp_path}/model/{manifest.folder}'") == 2


@pytest.mark.parametrize("when", ["after", pytest.param("last", marks=slow)])
def test_a_leader_that_dies_while_it_uploads_costs_no_model(tmp_path: Path, when: str) -> None:
    (tmp_path / "KILL").touch()
    _, said = train(tmp_path, *ELASTIC, when=when, ELASTANE_MODEL_TAKEOVER_SECONDS="3")
    assert not (tmp_path / "KILL").exists() and "was killed by SIGKILL" in said
    assert said.count("the model is saved") == 1


@slow
def test_stock_ddp_saves_the_same_files_once(tmp_path: Path) -> None:
    for name in ("ddp", "elastic"):
        (tmp_path / name).mkdir()
    stock, said = train(tmp_path / "ddp", *DDP, when="after", ELASTANE_MODE="ddp")
    assert said.count("the model is saved") == 1 and said.count("saved: ''") == 1
    assert stock == train(tmp_path / "elastic", *ELASTIC, when="after")[0]
