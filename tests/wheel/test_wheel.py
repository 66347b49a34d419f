"""The wheel as `python -m build` makes it, in a clean environment outside of the clone: its commands work.

Bare it is a client and a master, without torch; with its extras it trains.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import patience

ROOT = Path(__file__).resolve().parents[2]
#: Of an installation, or of a command that trains; two busy cores take their time.
SECONDS_MAX = 1200.0
SCRIPT = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import elastane

    job = elastane.init(seed=7)
    net = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))
    model, optimizer, loader = job.prepare(net, optimizer, DataLoader(data, 4, shuffle=True))
    for _ in job.epochs(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            job.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


class Environment:
    """A virtual environment, with a folder beside it in which commands run."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.work = folder / "venv" / "bin", folder / "work"
        self.work.mkdir(parents=True)
        # Neither a developer's settings nor the clone.
        left_out = ("PYTHONPATH", "VIRTUAL_ENV", "PIP_REQUIREMENT")
        kept = {n: v for n, v in os.environ.items() if n not in left_out and not n.startswith("ELASTANE_")}
        self.variables = kept | {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        }
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)

    def run(self, *command: str, code: int = 0) -> str:
        done = patience.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.work,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == code, done.stdout
        assert "Traceback" not in done.stdout, done.stdout
        return done.stdout

    def install(self, requirement: str) -> None:
        # What is used is compiled when it is; all of torch would take minutes.
        self.run("pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", requirement)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    [path] = WheelBuilder(str(ROOT)).build(
        directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"]
    )
    return Path(path)


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("bare"))
    environment.install(str(wheel))
    return environment


@pytest.fixture(scope="module")
def trains(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("trains"))
    environment.install(f"{wheel}[demo]")
    (environment.work / "train.py").write_text(textwrap.dedent(SCRIPT))
    return environment


def test_its_metadata_pin_no_version(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        required = message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    assert len(required) > 20
    assert [one for one in required if "==" in one.partition(";")[0]] == []


def test_bare_it_is_a_client_without_torch(bare: Environment) -> None:
    found = bare.run("python", "-c", "import elastane, elastane_master.app; print(elastane.__file__)")
    assert Path(found.strip()).is_relative_to(bare.bin.parent)
    packages = bare.run("pip", "freeze")
    assert re.search(r"^grpcio==", packages, re.MULTILINE)
    assert not re.search(r"^(torch|numpy)==", packages, re.MULTILINE)
    assert "ELA302" in bare.run("elastane", "errors", "ELA302")
    assert "no master answered" in bare.run(
        "elastane", "jobs", "--master", "127.0.0.1:9", "--timeout", "1", code=4
    )


def test_bare_it_says_what_to_install_before_it_trains(bare: Environment) -> None:
    (bare.work / "train.py").write_text(textwrap.dedent(SCRIPT))
    said = bare.run("elastane", "run", "--ests", "2", "train.py", code=3)
    assert "pip install 'elastane[worker]'" in said


def test_bare_it_is_a_master(bare: Environment) -> None:
    command = [bare.bin / "elastane", "master", "--listen", "127.0.0.1:0", "--state-dir", "state"]
    with subprocess.Popen(
        command,
        cwd=bare.work,
        env=bare.variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as master:
        try:
            assert master.stdout is not None
            address = next(
                found[0] for line in master.stdout if (found := re.search(r"127\.0\.0\.1:\d+", line))
            )
            assert bare.run("elastane", "jobs", "--json", "--master", address).strip() == "[]"
        finally:
            master.send_signal(signal.SIGTERM)
            assert master.wait(60) in (0, 143)


def test_it_trains_and_proves_it(trains: Environment) -> None:
    assert "severity" in trains.run("elastane", "doctor", "train.py")
    assert "job succeeded" in trains.run("elastane", "run", "--ests", "2", "train.py")
    assert "equal" in trains.run("elastane", "verify", "--ests", "2", "--runs", "1", "train.py")


def test_its_demo_runs(trains: Environment) -> None:
    assert trains.run("elastane", "demo").rstrip().endswith("same bits")
