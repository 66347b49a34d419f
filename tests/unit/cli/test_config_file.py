"""Options from `elastane.toml` or `pyproject.toml`, through the console script's own entry."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastane_cli.commands import main as console_script

Config = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELASTANE_TLS_CA", "")  # what a command sets is undone after the test
    for name in [name for name in os.environ if name.startswith("ELASTANE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        console_script.main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def config(capsys: pytest.CaptureFixture[str]) -> Config:
    """The options in effect, as (command, option): [value, source]."""

    def show(*arguments: str) -> dict[str, Any]:
        assert run(*arguments, "config", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        return {
            f"{one['command']} {one['option']}": [one["value"], one["source"]] for one in found["options"]
        }

    return show


def write(folder: Path, text: str, name: str = "elastane.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


FILE = """
[connection]
master = "10.0.0.1:50051"
tls-ca = "system"
[run]
ests = 4
workers = "1:3"
ps_journal = true
[ps.audit]
json = true
"""


def test_precedence_is_command_line_variable_file_default(
    folder: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(folder, FILE)
    assert config() == {
        "connection --tls-ca": ["system", path],
        "connection --master": ["10.0.0.1:50051", path],
        "run --ests": ["4", path],
        "run --workers": ["1:3", path],
        "run --ps-journal": [True, path],
        "ps audit --json": [True, path],
    }
    monkeypatch.setenv("ELASTANE_ESTS", "8")
    found = config("--tls-ca", "mine.pem")
    assert found["run --ests"] == ["8", "ELASTANE_ESTS"]
    assert found["connection --tls-ca"] == ["mine.pem", "command line"]


def test_a_command_has_the_options_of_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, '[connection]\nmaster = "127.0.0.1:1"\n[health]\ntimeout = 0.1\njson = true\n')
    assert run("health") == 4
    assert "127.0.0.1:1" in json.loads(capsys.readouterr().err)["message"]
    assert run("health", "--master", "127.0.0.1:2") == 4
    assert "127.0.0.1:2" in json.loads(capsys.readouterr().err)["message"]
    monkeypatch.setenv("ELASTANE_MASTER", "127.0.0.1:3")
    assert run("health") == 4
    assert "127.0.0.1:3" in json.loads(capsys.readouterr().err)["message"]


def test_the_nearest_file_counts_and_a_variable_names_another(
    folder: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = folder / "project" / "deep"
    inner.mkdir(parents=True)
    write(folder, "[run]\nests = 1\n")
    other = write(folder, "[run]\nests = 3\n", "other.toml")
    project = write(inner.parent, "[tool.elastane.run]\nests = 2\n", "pyproject.toml")
    monkeypatch.chdir(inner)
    assert config() == {"run --ests": ["2", project]}
    # A project of another tool is no file of ours.
    write(inner, "[tool.other]\n", "pyproject.toml")
    assert config() == {"run --ests": ["2", project]}
    monkeypatch.setenv("ELASTANE_CONFIG", other)
    assert config() == {"run --ests": ["3", other]}
    monkeypatch.setenv("ELASTANE_CONFIG", "")
    assert config() == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run]\nest = 4\n", "[run] est: no such option; did you mean 'ests'?"),
        ("[runs]\nests = 4\n", "[runs]: no such command; did you mean 'run'?"),
        ("[connection]\ntoken = 'x'\n", "[connection] token: no such option; did you mean 'token-file'?"),
        ("[ps.audits]\njson = true\n", "[ps] audits: no such option; did you mean 'audit'?"),
        ("ests = 4\n", "no such command"),
        ("run = 4\n", "run stands outside a table"),
        ("[run]\nests = true\n", "[run] ests: a value is needed"),
        ("[run]\njson = 1\n", "[run] json: true or false is needed"),
        ("[run]\nests = [1, 2]\n", "[run] ests: one value is needed"),
        ("[run]\npass = 'A'\n", "[run] pass: a list of values is needed"),
        ("[connection]\nversion = true\n", "[connection] version: no such option"),
        ("[connection]\nmaster = ['a:1', 'b:1']\n", "[connection] master: one value is needed"),
        ("[run\n", "Expected"),
    ],
)
def test_what_the_file_must_not_have_is_named_and_nothing_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = write(folder, text)
    command = "ps" if "ps." in text else "run"
    assert run(command, "missing.py") == 2
    told = capsys.readouterr().err
    assert said in told and path in told and "missing.py" not in told


def test_a_value_that_the_option_refuses_is_refused_as_on_the_command_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "[run]\nests = 'four'\n")
    assert run("run", "missing.py") == 2
    assert "--ests" in capsys.readouterr().err


def test_a_file_that_is_named_must_be_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTANE_CONFIG", "nowhere.toml")
    assert run("config") == 2
    assert "nowhere.toml: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[run]\nests = "two"\n', "--ests"),
        ('[run]\nests = 2\nworkers = "4:1"\n', "--workers"),
        ('[connection]\nmaster = "nowhere"\n[run]\nests = 2\n', "--master"),
    ],
    ids=["by its type", "by the command", "of the connection"],
)
def test_a_value_that_an_option_refuses_is_traced_to_the_file(
    text: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(folder, text)
    (folder / "train.py").touch()
    assert run("run", "train.py") == 2
    said = re.sub(r"[\s│]+", "", capsys.readouterr().err)  # as wide as the terminal, in a box
    assert words in said
    assert f"(from{path})" in said
    assert run("run", "--ests", "x", "train.py") == 2
    assert "(from" not in capsys.readouterr().err
