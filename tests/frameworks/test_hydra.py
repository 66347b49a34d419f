"""The recipe of docs/howto/hydra.md with the real Hydra, as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import patience

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "hydra.md").read_text()
SECONDS_MAX = 600.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the page says to save."""
    end = 0
    for block in re.finditer(r"^```(yaml|python)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        name = re.findall(r"`([\w/]+\.(?:py|yaml))`", PAGE[end : block.start()])[-1]
        end = block.end()
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(block[2])
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["config.yaml", "sweep.py", "train.py"]
    return tmp_path


def run(folder: Path, *command: str, code: int = 0) -> str:
    bin_folder = Path(sys.executable).parent
    done = patience.run(
        [str(bin_folder / command[0]), *command[1:]],
        cwd=folder,
        env=os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def command_of_page(start: str) -> list[str]:
    [line] = re.findall(rf"^    ({re.escape(start)}.*)$", PAGE, re.MULTILINE)
    return shlex.split(line)


def test_all_workers_of_a_job_have_one_folder_and_its_overrides(folder: Path) -> None:
    run(folder, *command_of_page("elastane run"))
    [made] = (folder / "outputs").iterdir()
    assert made.name == "train"
    config = OmegaConf.load(made / ".hydra" / "config.yaml")
    assert (config.lr, config.epochs) == (0.2, 3)
    assert set(torch.load(made / "net.pt")) == {"weight", "bias"}
    assert not (folder / "net.pt").exists()


def test_its_bits_are_those_of_ddp_under_kills(folder: Path) -> None:
    assert "equal, bit for bit" in run(folder, *command_of_page("elastane verify"))


def test_a_sweep_is_a_job_and_a_folder_for_each_of_its_points(folder: Path) -> None:
    said = run(folder, *command_of_page("python sweep.py"))
    models = {}
    for rate in ("0.1", "0.2"):
        assert f"job lr-{rate} (new)" in said
        made = folder / "sweep" / f"lr-{rate}"
        assert OmegaConf.load(made / ".hydra" / "config.yaml").lr == float(rate)
        models[rate] = torch.load(made / "net.pt")["weight"]
    assert not torch.equal(models["0.1"], models["0.2"])
    assert not (folder / "outputs").exists()


def test_a_sweep_inside_a_worker_is_refused(folder: Path) -> None:
    said = run(folder, "elastane", "run", "--ests", "2", "train.py", "-m", "lr=0.1,0.2")
    assert "elastane.init was called in a script that has been prepared already" in said
    assert "job succeeded: the script came to its end after 24 steps" in said  # the first one
    assert list(folder.glob("multirun/*/*/1/net.pt")) == []
