"""Scripts of Accelerate, transformers and Lightning that would train in each worker by itself."""

from __future__ import annotations

import ast
from importlib import metadata
from pathlib import Path

import pytest

from elastane.integrations.versions import LibraryVersionError, check_version
from elastane.script_source.plain_libraries import PlainLibraryError, plain_class, plain_library_error
from elastane_cli.commands.run_options import refuse_plain_libraries


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("import torch\nfrom accelerate import Accelerator", (2, "accelerate", "Accelerator")),
        ("from transformers import BertConfig, Trainer", (1, "transformers", "Trainer")),
        ("def main():\n    from transformers.trainer import Trainer", (2, "transformers", "Trainer")),
        ("import transformers\ntransformers.Trainer()", (2, "transformers", "Trainer")),
        ("import transformers as hf\nhf.Trainer()", (2, "transformers", "Trainer")),
        ("import lightning as L\nL.Trainer(strategy='ddp', devices=2)", (2, "lightning", "Trainer")),
        ("import lightning.pytorch as pl\npl.Trainer(devices=2)", (2, "lightning", "Trainer")),
        ("import lightning\nlightning.pytorch.Trainer()", (2, "lightning", "Trainer")),
        ("from lightning import pytorch as pl\npl.Trainer()", (2, "lightning", "Trainer")),
        ("from lightning.fabric import Fabric", (1, "lightning", "Fabric")),
        ("import pytorch_lightning as pl\npl.Trainer()", (2, "pytorch_lightning", "Trainer")),
        ("import lightning as L\nclass Net(L.LightningModule): pass\nhere.Trainer()", None),
        ("from accelerate.utils import set_seed\nimport transformers\ntransformers.pipeline()", None),
        ("from elastane.integrations.accelerate import Accelerator", None),
        ("import elastane\nfrom accelerate import Accelerator", None),
        ("from .accelerate import Accelerator", None),
    ],
)
def test_the_class_that_trains_alone_is_found(script: str, found: object) -> None:
    assert plain_class(ast.parse(script)) == found


@pytest.mark.parametrize(
    ("library", "name", "hint"),
    [
        ("accelerate", "Accelerator", "from elastane.integrations.accelerate import Accelerator"),
        ("lightning", "Trainer", "strategy=ElastaneStrategy()"),
        ("lightning", "Fabric", "from elastane.integrations.lightning import Fabric"),
        ("lightning_fabric", "Fabric", "pip install lightning in place of lightning_fabric"),
    ],
)
def test_the_hint_is_what_to_write_instead(library: str, name: str, hint: str) -> None:
    assert hint in plain_library_error("train.py:2", library, name).hint


USES = "from lightning import Trainer\n"


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"train.py": "import parts\n" + USES, "parts.py": "x = 1\n"}, "train.py:2"),
        ({"train.py": "import parts\n" + USES, "parts.py": "import elastane\n"}, None),
        ({"train.py": "import parts\n", "parts.py": USES}, "parts.py:1"),
        (
            {"train.py": "from kit.fit import main\n", "kit/__init__.py": "", "kit/fit.py": USES},
            "kit/fit.py:1",
        ),
        (
            {
                "train.py": USES + "import kit.fit\n",
                "kit/__init__.py": "",
                "kit/fit.py": "from . import job\n",
                "kit/job.py": "import train\nimport elastane.integrations.lightning\n",
            },
            None,
        ),
    ],
    ids=["nobody", "a module beside", "in a module beside", "in a package", "a package's module, relatively"],
)
def test_the_modules_beside_a_script_are_read_with_it(
    files: dict[str, str], place: str | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    script = str(tmp_path / "train.py")
    if place is None:
        refuse_plain_libraries(script)
        return
    with pytest.raises(PlainLibraryError) as error:
        refuse_plain_libraries(script)
    assert str(error.value).startswith(f"{tmp_path / place} uses lightning's own Trainer")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("1.14.2", "accelerate 1.14.2 is installed, and .* was tested with >=1.15,<1.16"),
        ("1.16.0", "accelerate 1.16.0 is installed, and .* was tested with >=1.15,<1.16"),
        (None, "accelerate is not installed"),
    ],
    ids=["too old", "too new", "none"],
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
