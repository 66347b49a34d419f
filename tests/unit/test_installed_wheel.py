"""What a newcomer has after `pip install`: the wheel alone, outside any clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import patience

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with what the wheel puts there."""
    folder = tmp_path_factory.mktemp("wheel")
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    site = folder / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def python(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ELASTANE_")}
    return patience.run(
        [sys.executable, *arguments],
        cwd=installed.parent,
        env=clean | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_its_commands_tell_their_version(installed: Path) -> None:
    for module, name in (
        ("elastane_cli.console", "elastane"),
        ("elastane_operator.cli", "elastane-operator"),
    ):
        done = python(installed, "-c", f"from {module} import main; main()", "--version")
        assert (done.returncode, done.stdout) == (0, f"{name} {version('elastane')}\n"), done.stderr


def test_the_demo_trains_the_script_of_the_wheel(installed: Path) -> None:
    code = "from elastane_cli.demo.run import demo_script; print(demo_script())"
    script = Path(python(installed, "-c", code).stdout.strip())
    assert script == installed / "elastane_cli" / "demo" / "digits_cnn.py"
    assert script.read_text() == (ROOT / "examples" / "digits_cnn.py").read_text()


def test_the_services_demo_submits_the_scripts_of_the_wheel(installed: Path) -> None:
    code = "from elastane_cli.demo.service_run import service_scripts; print(service_scripts())"
    folder = Path(python(installed, "-c", code).stdout.strip())
    assert folder == installed / "elastane_cli" / "demo" / "service"
    ours = ROOT / "examples" / "service"
    assert {one.name for one in folder.glob("*.py")} == {one.name for one in ours.glob("*.py")}


def is_sent(path: Path) -> bool:
    """Whether .dockerignore lets a path of ours into a build; the last rule that matches decides."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in ("", "#")]
    names = [str(one) for one in (path, *path.parents)]
    sent = True
    for rule in rules:
        if any(fnmatchcase(name, rule.removeprefix("!")) for name in names):
            sent = rule.startswith("!")
    return sent


def test_the_images_build_it_of_what_the_dockerfile_copies(tmp_path: Path) -> None:
    stage = re.search(r"^FROM \S+ AS source\n(.*?)^FROM ", (ROOT / "Dockerfile").read_text(), re.M | re.S)
    assert stage is not None
    copies = [line.split()[1:] for line in stage[1].splitlines() if line.startswith("COPY ")]
    for *sources, target in copies:
        for source in map(Path, sources):
            assert is_sent(source), source
            place = tmp_path / (target if len(sources) == 1 else source.name)
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(ROOT / source, place)
    [wheel] = WheelBuilder(str(tmp_path)).build(directory=str(tmp_path / "dist"), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        assert "elastane_cli/demo/digits_cnn.py" in archive.namelist()
