"""Run by Python in every process of a reference: installs the recorder, then continues as without it."""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path


def _go_on() -> None:
    """Run the sitecustomize that this one shadows, if there is one."""
    here = Path(__file__).absolute().parent
    others = [path for path in sys.path if Path(path).absolute() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("ELASTANE_REFERENCE_DIR"):
    import elastane_reference  # type: ignore[import-not-found]  # beside this file

    elastane_reference.install()
_go_on()
