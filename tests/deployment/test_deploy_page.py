"""docs/deploy.md: commands exist with their options, files are there, symptoms are the product's words."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from deployment.kustomize import containers, render
from deployment.product import SECRETS, master_variables, operator_variables, worker_variables
from elastane_cli.commands.catalogue import COMMANDS, load
from elastane_master.cli import app as master_app

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/deploy.md").read_text()
#: Words of other programs in the table of symptoms.
FOREIGN = {"Bus error"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def lines() -> list[list[str]]:
    """The shell commands of the page, split into words."""
    text = "".join(blocks("sh")) + "".join(re.findall(r"^    (docker .*\n)", PAGE, re.M))
    text = text.replace("\\\n", " ")
    return [
        shlex.split(line, comments=True) for line in text.splitlines() if shlex.split(line, comments=True)
    ]


def elastane_commands() -> list[list[str]]:
    """What follows `elastane` in each line that has it as a command."""
    systemd = [shlex.split(line) for line in re.findall(r"^ExecStart=(.*)", "".join(blocks("ini")), re.M)]
    found = []
    for words in [*lines(), *systemd]:
        for index, word in enumerate(words):
            before = words[index - 1] if index else ""
            if Path(word).name == "elastane" and (index == 0 or before == "master"):
                found.append(words[index + 1 :])
    return found


def test_there_are_commands() -> None:
    assert {command[0] for command in elastane_commands()} >= {"master", "run", "token", "progress", "scale"}


@pytest.mark.parametrize("words", elastane_commands(), ids=" ".join)
def test_a_command_exists_with_these_options(words: list[str]) -> None:
    for end in (">", ">>", "&"):
        words = words[: words.index(end)] if end in words else words
    assert words[0] in COMMANDS
    command = get_command(master_app) if words[0] == "master" else load(words[0])
    context = command.context_class(command, info_name=words[0], **command.context_settings)
    command.make_parser(context).parse_args(list(words[1:]))  # raises for an unknown option


def test_an_unknown_option_would_be_found() -> None:
    command = load("run")
    with pytest.raises(Exception, match="No such option: --est"):
        command.make_parser(command.context_class(command, info_name="run")).parse_args(["--est", "4"])


def test_files_that_commands_name_are_there() -> None:
    named = set(re.findall(r"\b(deploy/[\w./-]+)", PAGE))
    assert len(named) > 5
    for name in named:
        assert (ROOT / name.rstrip(".")).exists(), name
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
    for heading in re.findall(r"\]\(#([^)]+)\)", PAGE):
        titles = [title.lower().replace(" ", "-") for title in re.findall(r"^## (.*)", PAGE, re.M)]
        assert heading in titles


def test_images_that_it_builds_are_targets() -> None:
    targets = re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "Dockerfile").read_text(), re.M)
    built = [words[words.index("--target") + 1] for words in lines() if "--target" in words]
    assert built == ["master", "operator", "worker"]
    assert set(built) <= set(targets)


def test_secrets_that_it_makes_are_those_that_pods_mount() -> None:
    made: dict[str, set[str]] = {}
    for words in lines():
        if words[0] == "kubectl" and "secret" in words:
            keys = {
                word.removeprefix("--from-file=").partition("=")[0]
                for word in words
                if word.startswith("--from-file=")
            }
            made[words[words.index("generic") + 1]] = keys
    for name in ("elastane-tls", "elastane-tokens", "elastane-metrics", "elastane-redis"):
        assert made[name] <= SECRETS[name], name
    assert made["elastane-tls"] == SECRETS["elastane-tls"]
    job = yaml.safe_load((ROOT / "deploy/kubernetes/example/job.yaml").read_text())["spec"]["master"]
    assert made[job["tokenSecret"]["name"]] == {"operator", "worker"}
    assert made[job["tlsSecret"]["name"]] == {"ca.crt"}


def test_the_overlay_it_shows_is_one(tmp_path: Path) -> None:
    [text] = [block for block in blocks("yaml") if yaml.safe_load(block)["kind"] == "Kustomization"]
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "kustomization.yaml").write_text(text)
    images = {container["image"] for resource in render(tmp_path) for container in containers(resource)}
    assert {image for image in images if "elastane" in image} == {
        "registry.example/elastane-master:0.1.0",
        "registry.example/elastane-operator:0.1.0",
    }
    [operator] = [c for resource in render(tmp_path) for c in containers(resource) if c["name"] == "operator"]
    given = {entry["name"]: entry["value"] for entry in operator["env"]}
    assert given["ELASTANE_OPERATOR_MASTER_IMAGE"] in images


@functools.cache
def said() -> str:
    """Every text in the product's sources."""
    texts = []
    for root in (
        "common/elastane_common",
        "master/elastane_master",
        "worker/elastane",
        "worker/elastane_agent",
        "worker/elastane_cli",
        "proto/elastane_proto/history",
    ):
        for path in sorted((ROOT / root).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return "\n".join(texts)


def symptoms() -> list[str]:
    table = PAGE.partition("| you see | because | do |")[2]
    first = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ")]
    return [text for cell in first for text in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("symptom", symptoms())
def test_a_symptom_is_in_the_products_words(symptom: str) -> None:
    if symptom.startswith("elastane "):
        assert symptom.split()[1] in COMMANDS
    elif symptom not in FOREIGN:
        assert symptom in said()


def test_there_are_symptoms() -> None:
    assert len(symptoms()) > 20


def test_variables_that_it_names_exist() -> None:
    sources = "\n".join(
        path.read_text() for root in ("common", "master", "worker") for path in (ROOT / root).rglob("*.py")
    )
    known = (
        master_variables()
        | worker_variables()
        | operator_variables()
        | {"ELASTANE_SCRIPTS", "ELASTANE_SCRIPT"}
    )
    for name in set(re.findall(r"\bELASTANE_\w+", PAGE)):
        assert name in known or f'"{name}"' in sources, name
