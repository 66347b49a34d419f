"""Scripts of Accelerate and transformers that would train in each worker by itself."""

from __future__ import annotations

import ast
from importlib import metadata
from pathlib import Path

import pytest

from elastane.integrations.versions import LibraryVersionError, check_version
from elastane.script_source.plain_libraries import PlainLibraryError, plain_class
from elastane_cli.commands.run_options import refuse_plain_libraries


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("import torch\nfrom accelerate import Accelerator", (2, "accelerate", "Accelerator")),
        ("from transformers import BertConfig, Trainer", (1, "transformers", "Trainer")),
        ("def main():\n    from transformers.trainer import Trainer", (2, "transformers", "Trainer")),
        ("import transformers\ntransformers.Trainer()", (2, "transformers", "Trainer")),
        ("from accelerate.utils import set_seed\nimport transformers\ntransformers.pipeline()", None),
        ("from elastane.integrations.accelerate import Accelerator", None),
        ("import elastane\nfrom accelerate import Accelerator", None),
        ("from .accelerate import Accelerator", None),
    ],
)
def test_the_class_that_trains_alone_is_found(script: str, found: object) -> None:
    assert plain_class(ast.parse(script)) == found


def test_a_script_is_refused_unless_a_module_beside_it_may_use_the_job(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import parts\nfrom accelerate import Accelerator\n")
    with pytest.raises(PlainLibraryError, match=r"train\.py:2 uses accelerate's own Accelerator") as error:
        refuse_plain_libraries(str(script))
    assert error.value.hint == "from elastane.integrations.accelerate import Accelerator"
    (tmp_path / "parts.py").write_text("import elastane\n")
    refuse_plain_libraries(str(script))


@pytest.mark.parametrize(
    ("version", "words"), [("1.14.2", "1.14.2 is installed"), (None, "is not installed")]
)
def test_a_version_that_was_not_tested_is_refused(
    version: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(library: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(library)
        return version

    monkeypatch.setattr(metadata, "version", found)
    with pytest.raises(LibraryVersionError, match=words) as error:
        check_version("accelerate")
    assert "elastane[accelerate]" in error.value.hint


def test_a_tested_version_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda library: "5.24.3")
    check_version("transformers")
