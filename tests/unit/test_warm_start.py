"""A preloaded worker: what it imports ahead of time, and that the script runs as Python would run it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastane.script_source.leading_imports import leading_imports

SOURCES = Path(__file__).parents[2]
PATH = os.pathsep.join(str(SOURCES / root) for root in ("common", "proto", "shard_service", "worker"))
INSTALLED = {"os", "torch", "numpy", "elastane"}


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ('"""Text."""\nfrom __future__ import annotations\nimport os, torch.nn as nn\n', ["os", "torch.nn"]),
        ("from torch.utils import data\nfrom numpy import *\nx = 1\nimport os", ["torch.utils", "numpy"]),
        ("import os\nos.environ['A'] = '1'\nimport torch", ["os"]),
        ("import torch\nimport settings\nimport elastane", ["torch"]),
        ("import torch, settings, os", ["torch"]),
        ("from . import local\nimport torch", []),
        ("import torch\ntry:\n    import numpy\nexcept ImportError:\n    pass\nimport os", ["torch"]),
        ("'one'\n'two'\nimport torch", []),
        ("", []),
    ],
)
def test_imports_before_anything_else(script: str, names: list[str]) -> None:
    assert leading_imports(ast.parse(script), INSTALLED.__contains__) == names


GUARDED = """
import os
print(type(os.environ).__name__)
import elastane
print(type(os.environ).__name__, elastane.RefusedError.__name__)
"""

SCRIPT = """
import json, os, sys
import beside
import __main__
class Own: pass
if __name__ == "__main__":
    print(json.dumps({
        "argv": sys.argv, "path": sys.path[0], "file": __file__, "names": sorted(set(globals()) - {"Own"}),
        "beside": beside.VALUE, "own": __main__.Own is Own, "input": sys.stdin.read(),
        "value": os.environ.get("VALUE"), "gone": os.environ.get("GONE"), "doc": __doc__,
        "spec": repr(__spec__),
    }))
    if "raise" in sys.argv:
        raise ValueError("in the script")
"""


def run(command: list[str], folder: Path, said: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": PATH} | variables
    return subprocess.run(
        [sys.executable, "-u", *command],
        input=said,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "beside.py").write_text("VALUE = 3\n")
    (folder / "train.py").write_text(SCRIPT)
    return folder / "train.py"


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("{folder}/scripts/train.py", {}),
        ("scripts/train.py", {}),
        ("./scripts/../scripts/train.py", {}),
        ("scripts/train.py", {"PYTHONSAFEPATH": "1", "PYTHONPATH": f"{PATH}{os.pathsep}scripts"}),
    ],
)
def test_the_script_sees_what_python_shows_it(
    script: Path, tmp_path: Path, name: str, variables: dict[str, str]
) -> None:
    assert script.is_file()
    arguments = [name.format(folder=tmp_path), "--epochs", "3"]
    told = json.dumps({"set": {"VALUE": "new"}, "unset": ["GONE"]}) + "\n"
    warm = run(
        ["-m", "elastane.warm_start", *arguments], tmp_path, told, GONE="here", VALUE="old", **variables
    )
    stock = run(arguments, tmp_path, "", VALUE="new", **variables)
    assert stock.returncode == 0 == warm.returncode, warm.stderr
    assert json.loads(warm.stdout) == json.loads(stock.stdout)
    assert "imports torch after other statements" in warm.stderr


def test_its_errors_are_shown_as_python_shows_them(script: Path, tmp_path: Path) -> None:
    assert script.is_file()
    arguments = ["scripts/train.py", "raise"]
    warm = run(["-m", "elastane.warm_start", *arguments], tmp_path, '{"set": {}, "unset": []}\n')
    stock = run(arguments, tmp_path, "")
    assert warm.returncode == 1 == stock.returncode
    assert warm.stderr[warm.stderr.index("Traceback") :] == stock.stderr


def test_variables_of_launchers_are_guarded_from_the_scripts_import_on(script: Path, tmp_path: Path) -> None:
    script.write_text(GUARDED)
    worker = {"ELASTANE_MODE": "elastic", "ELASTANE_WORKER_ID": "w1"}
    told = json.dumps({"set": worker, "unset": []}) + "\n"
    warm = run(["-m", "elastane.warm_start", str(script)], tmp_path, told)
    stock = run([str(script)], tmp_path, "", **worker)
    assert warm.stdout == stock.stdout == "_Environ\n_Guarded RefusedError\n"


def test_it_ends_when_nobody_needs_it(script: Path, tmp_path: Path) -> None:
    ended = run(["-m", "elastane.warm_start", str(script)], tmp_path, "")
    assert (ended.returncode, ended.stdout) == (0, "")
