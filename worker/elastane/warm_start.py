"""A preloaded worker: imports what a script begins with, and waits to be told which worker it is.

    python -u -m elastane.warm_start SCRIPT [ARGUMENT...]

Started ahead of time by the agent (`elastane run --warm`), which sends one line of JSON to its standard
input when a worker is to be started: `{"set": {NAME: VALUE}, "unset": [NAME]}`, the difference between the
worker's environment and its own. The script then runs as if Python had just started it. It ends quietly if
its standard input ends before.

Only imports that precede everything else in the script are made ahead of time, in the script's order, so
nothing of it could have come between (see `leading_imports`).
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
from pathlib import Path
from types import CodeType, TracebackType
from typing import Final

from elastane.script_source.leading_imports import is_standard_library, leading_imports
from elastane.script_source.places import is_script_file, tree_of

#: What `elastane.init` and the first optimizer import otherwise, which takes longer than torch itself.
_AT_INIT: Final = (
    "elastane.modes",
    "elastane.runtime.elastic",
    "elastane.collective.warming",
    "torch._dynamo",
)
_READ_BYTES: Final = 64 * 1024
_STANDARD_INPUT: Final = 0


def main(command: list[str]) -> None:
    """Preload, wait, and run the script. command: the script and its arguments."""
    script = command[0]
    if not sys.flags.safe_path:
        # As `python SCRIPT` has it: here it was the current folder, for `-m`.
        sys.path[0] = str(Path(script).resolve().parent)
    sys.argv[:] = command
    # As Python names it in `__file__` and in tracebacks, so that the script finds its files after `os.chdir`.
    script = script if Path(script).is_absolute() else f"{Path.cwd()}/{script}"
    _preload(script)
    if not (line := _read_line()):
        return
    _take(json.loads(line))
    _run(script)


def _preload(script: str) -> None:
    tree = tree_of(script)
    names = leading_imports(tree, _is_installed) if tree is not None else []
    for name in names:
        # Whatever is wrong with it, the script will meet it, too, and says where.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if "torch" in {name.partition(".")[0] for name in names}:
        for name in _AT_INIT:
            importlib.import_module(name)
    else:
        sys.stderr.write(
            f"{script} imports torch after other statements or modules of its own, which a preloaded worker "
            "does not run: with such imports first, it would start faster\n"
        )
    # The script's own import is to do what it does in a worker: guard the launcher's variables from there on.
    del sys.modules["elastane"]


def _is_installed(name: str) -> bool:
    if is_standard_library(name):
        return True
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and not is_script_file(spec.origin)


def _read_line() -> bytes:
    """Return a line of standard input; b"" if it ends before. Then nothing is left of it, as for a worker."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(_STANDARD_INPUT, _READ_BYTES)
        if not data:
            return b""
        line += data
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STANDARD_INPUT)
    os.close(nothing)
    return line


def _take(changes: dict[str, object]) -> None:
    """Adopt the worker's environment."""
    values, gone = changes["set"], changes["unset"]
    assert isinstance(values, dict) and isinstance(gone, list)
    os.environ.update(values)
    for name in gone:
        os.environ.pop(name, None)


def _run(script: str) -> None:
    """Run the script as the main module. Ends as the script does."""
    with io.open_code(script) as file:
        code: CodeType = compile(file.read(), script, "exec", dont_inherit=True)
    namespace = sys.modules["__main__"].__dict__
    namespace.clear()
    namespace.update(
        __name__="__main__",
        __doc__=None,
        __package__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", script),
        __spec__=None,
        __annotations__={},
        __builtins__=builtins,
        __file__=script,
        __cached__=None,
    )
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Show a traceback from the script on, without the frames of this module."""
        inner = trace
        while inner is not None and inner.tb_frame.f_code is not code:
            inner = inner.tb_next
        inner = inner or trace
        shown(kind, error.with_traceback(inner), inner)

    sys.excepthook = hook
    exec(code, namespace)


if __name__ == "__main__":
    # Not the functions of this module object: its namespace becomes the script's.
    from elastane.warm_start import main as warm_start

    warm_start(sys.argv[1:])
