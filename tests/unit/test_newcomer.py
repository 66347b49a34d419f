"""The newcomer's path is the tutorial's, command by command; and it is timed, and fails, as it should."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import newcomer
import pytest
from newcomer import CommandFailedError, plan, run

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / newcomer.PAGE).read_text()

SMALL = """# A page

```console
here=$(pwd) && export MINE=$here
```

Save it as `own.py`:

```python
print("hello")
```

## Run

```sh
cat own.py > seen \\
  2> seen.err
test "$MINE" = "$(pwd)" && echo fine
```

## Verify

```sh
test -s seen
```

## Later

```sh
exit 9
```
"""


def test_the_path_is_what_the_tutorial_says() -> None:
    stages = plan(TUTORIAL)
    commands = [stage.text for stage in stages if not stage.file]
    assert [stage.file for stage in stages if stage.file] == ["stock.py", "train.py"]
    assert "import elastane" not in stages[2].text and "elastane.init" in stages[4].text
    assert all(command in TUTORIAL for command in commands)
    told = [command.split()[:2] for command in commands]
    assert told == [["python3", "-m"], ["pip", "install"], ["python", "stock.py"], ["elastane", "doctor"],
                    ["elastane", "verify"]]  # fmt: skip
    # It follows the page, and is no copy of it.
    changed = TUTORIAL.replace("elastane verify --ests 2", "elastane verify --ests 5")
    assert plan(changed)[-1].text == commands[-1].replace("--ests 2", "--ests 5")
    with pytest.raises(ValueError, match="no section 'Verify'"):
        plan(TUTORIAL.replace("## Verify", "## Proof"))


def test_one_shell_runs_the_page_as_far_as_verify(tmp_path: Path) -> None:
    said: list[str] = []
    done = run(plan(SMALL), tmp_path, dict(os.environ), said.append)
    assert [one.command.split()[0] for one in done] == ["here=$(pwd)", "cat", "test", "test"]
    assert (tmp_path / "seen").read_text() == 'print("hello")\n' and len(said) == 4
    slow = run(plan(SMALL.replace("test -s seen", "sleep 0.2")), tmp_path, dict(os.environ), said.append)
    assert slow[-1].seconds > 0.19 > slow[-2].seconds


def test_a_command_that_fails_is_named_with_what_it_said(tmp_path: Path) -> None:
    broken = SMALL.replace("test -s seen", "echo it does not work; false")
    with pytest.raises(
        CommandFailedError, match="`echo it does not work; false` ended with code 1"
    ) as caught:
        run(plan(broken), tmp_path, dict(os.environ), lambda line: None)
    assert caught.value.said == "it does not work\n"


def test_from_a_clone_to_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "source"
    (source / "docs").mkdir(parents=True)
    (source / newcomer.PAGE).write_text(SMALL)
    git = ["git", "-C", str(source), "-c", "user.name=n", "-c", "user.email=n@localhost"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "page"]):
        subprocess.run([*git, *command], check=True)
    assert newcomer.main([str(source), "--json", "--no-cache"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["verified"] and not told["pip_cache"] and len(told["commit"]) == 12
    assert told["stages"][0]["command"] == "git clone" and len(told["stages"]) == 5
    assert told["total_seconds"] >= max(one["seconds"] for one in told["stages"])
    (source / newcomer.PAGE).write_text(SMALL.replace("test -s seen", "false"))
    subprocess.run([*git, "commit", "--quiet", "-am", "broken"], check=True)
    assert newcomer.main([str(source)]) == 1
    assert "the newcomer is stuck: `false` ended with code 1" in capfd.readouterr().err
    assert newcomer.main([str(tmp_path / "absent")]) == 1
    with pytest.raises(SystemExit):
        newcomer.main([str(source), "--folder", str(source)])
