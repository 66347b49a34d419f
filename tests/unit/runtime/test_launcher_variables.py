"""RANK and the like as a script finds them in a worker. In processes of their own: what is guarded stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import patience

#: What a script does -> words of what becomes of it; empty: nothing.
READS = {
    "int(os.environ.get('RANK', 0)); begin()": "train.py:3 reads the variable RANK",
    "os.getenv('WORLD_SIZE', '1'); begin()": "use job.num_ests",
    "'LOCAL_RANK' in os.environ; begin()": 'torch.device("cuda")',
    "os.environ['RANK']; print('not reached')": "train.py:3 reads the variable RANK",
    "begin(); os.environ.get('RANK')": "ELA365",
    "begin()\ntry: os.environ['RANK']\nexcept Exception: pass\ncheck()": "train.py:4 reads",
    "dict(os.environ); os.environ.copy(); os.environ.get('HOME'); begin(); check()": "",
    "os.environ['RANK'] = '3'; begin(); print(os.environ['RANK'])": "",
    "os.environ.get('RANK'); allow(); check(); os.environ.get('RANK')": "",
    "sys.path.append('site-packages'); import package; begin(); package.ask(); package.ask()": "",
    "sys.path.insert(0, 'site-packages'); import accelerate.state as s; s.ask()": "ELA368",
    (
        "sys.path.append('site-packages')\nimport package as p\n"
        "from elastane.data.current import making_for\n"
        "with making_for(1): assert p.rank() == ('1', '3', None)\nassert p.rank() == (None, None, None)"
    ): "",
    "sys.path.insert(0, 'site-packages'); import lightning.env as e; e.ask()": "",
    "sys.path.insert(0, 'site-packages'); import lightning.env as e; e.creates_processes_externally()": (
        "train.py:3 uses a strategy of Lightning's own"
    ),
    "know('accelerate'); sys.path.insert(0, 'site-packages'); import accelerate.state as s; s.ask()": "",
}


@pytest.mark.parametrize("line", READS)
def test_who_reads_a_variable_of_the_launcher_is_refused_at_that_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys, elastane\nfrom elastane.runtime.launcher_variables import *\n" + line
    )
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "package.py").write_text(
        "import os\ndef ask():\n    assert os.environ.get('RANK') is None\n"
        "def rank():\n    return tuple(map(os.environ.get, ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')))\n"
    )
    for library, module in (("accelerate", "state.py"), ("lightning", "env.py")):
        folder = tmp_path / "site-packages" / library
        folder.mkdir()
        (folder / "__init__.py").touch()
        shutil.copy(tmp_path / "site-packages" / "package.py", folder / module)
    with (folder / "env.py").open("a") as file:
        file.write("def creates_processes_externally():\n    return 'LOCAL_RANK' in os.environ\n")
    worker = {"ELASTANE_MODE": "elastic", "ELASTANE_WORKER_ID": "w0", "RANK": "7", "LOCAL_RANK": "7"}
    worker["ELASTANE_ESTS"] = "3"
    ran = patience.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=os.environ | worker,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = ran.stdout + ran.stderr
    assert (ran.returncode != 0) == bool(READS[line]), said
    assert READS[line] in said and "not reached" not in said
    assert said.count("package reads the variable RANK") == ("package.ask" in line), said


def test_other_processes_are_left_alone() -> None:
    asked = "import os, elastane; print(type(os.environ).__name__, os.environ['RANK'])"
    environment = {**os.environ, "RANK": "7", "ELASTANE_MODE": "ddp", "ELASTANE_WORKER_ID": "w0"}
    ran = subprocess.run(
        [sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["_Environ", "7"]
