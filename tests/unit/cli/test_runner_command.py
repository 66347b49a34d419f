"""Options of `elastane runner`: which containers it would start, and what is bad usage."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_cli.commands.runner_options import ContainerChoices, size_bytes
from elastane_runner.container_plan import ContainerOptions


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("512k", 512 * 2**10), ("64M", 2**26), ("8GiB", 2**33), ("2tb", 2**41)],
)
def test_a_size_has_units_of_1024(text: str, expected: int) -> None:
    assert size_bytes(text, "--memory") == expected


@pytest.mark.parametrize("text", ["", "0", "-1M", "1.5G", "G", "1 G", "1X", "1iB2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a size"):
        size_bytes(text, "--memory")


def test_choices_become_options_of_containers() -> None:
    chosen = ContainerChoices(
        image="i:1", user="7", memory="1G", cpus=0.5, network="host", allow_host_network=True,
        read_folder=[Path("/data")], write_folder=[Path("/models")], temporary="1M",
    )  # fmt: skip
    assert chosen.options() == ContainerOptions(
        image="i:1", user="7", memory_bytes=2**30, cpus=0.5, network="host", allows_host_network=True,
        read_folders=(Path("/data"),), write_folders=(Path("/models"),), temporary_bytes=2**20,
    )  # fmt: skip
    assert ContainerChoices(image="i").options() == ContainerOptions(image="i")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "containers need an image"),
        (("--image", "i", "--network", "host"), "the host's network is not allowed"),
        (("--image", "i", "--user", "0"), "ranks cannot run as '0'"),
        (("--image", "i", "--memory", "much"), "'much' is not a size"),
        (("--image", "i", "--memory", "1K"), "are too few"),
        (("--image", "i", "--read-folder", "here"), "its path is absolute"),
    ],
)
def test_containers_that_no_engine_takes_are_bad_usage(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    folder = ("--folder", str(tmp_path / "runner"))
    result = CliRunner().invoke(build_app(), ["runner", "--kind", "container", *folder, *words])
    assert result.exit_code == 2 and said in " ".join(result.stderr.replace("│", " ").split())
    assert not (tmp_path / "runner").exists()
