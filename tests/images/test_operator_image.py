"""The operator's image starts, as nobody, and has what it needs."""

from __future__ import annotations

from images.engine import Engine


def test_it_says_how_it_is_run(clean: Engine, operator_image: str) -> None:
    container = clean.start(operator_image, "--help")
    assert container.wait() == 0, container.logs()
    assert "namespace" in container.logs().lower()


def test_it_is_nobody_and_has_no_torch(clean: Engine, operator_image: str) -> None:
    code = "import os; from importlib.util import find_spec as has; "
    code += "print(os.getuid(), bool(has('torch')), bool(has('kubernetes')))"
    container = clean.start(operator_image, "-c", code, arguments=["--entrypoint", "python"])
    assert container.wait() == 0, container.logs()
    assert container.logs().split() == ["10001", "False", "True"]
