"""Elastic training from a notebook's cell: `import elastane.notebook`, and `launch(train, ests=4, ...)`.

Workers are processes of their own, so the function's source is written to a script, which `elastane run`
trains. What the function uses has to be in it: nothing of the notebook's state reaches the workers.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import json
import queue
import signal
import sys
import tempfile
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from elastane_common.errors import ElastaneError
from elastane_common.processes.child import ChildProcess, ExitStatus

_SECOND_SIGNAL: Final = "interrupted again: the workers are killed"


class NotebookError(ElastaneError):
    """A function cannot be trained from a notebook, or its training has failed."""

    code = "ELA427"


def launch(
    function: Callable[..., Any],
    arguments: Mapping[str, Any] | None = None,
    *,
    ests: int,
    workers: str | None = None,
    options: Sequence[str] = (),
) -> None:
    """Train what a function does, on workers of this machine; return when the job has succeeded.

        def train(epochs):
            import elastane, torch
            job = elastane.init()
            ...
            if job.is_leader:
                torch.save(net.state_dict(), "net.pt")

        elastane.notebook.launch(train, {"epochs": 3}, ests=4, workers="1:4")

    Every worker calls it. It has its imports inside and uses no variable of the notebook; the model leaves it
    as a file. The output is printed here. An interrupt of the kernel drains the workers, as Ctrl-C does; a
    second one kills them.

    arguments: by name, as JSON holds them. ests: logical workers. workers: MIN:MAX. options: further ones of
    `elastane run`. Raises NotebookError.
    """
    script = script_of(function, arguments or {})
    with tempfile.TemporaryDirectory(prefix="elastane-notebook-") as folder:
        path = Path(folder) / f"{function.__name__}.py"
        path.write_text(script)
        limits = [] if workers is None else ["--workers", workers]
        command = [sys.executable, "-m", "elastane_cli", "run", "--ests", str(ests), *limits, *options]
        status = _run([*command, str(path)])
    if status.returncode:
        raise NotebookError(
            f"the training of {function.__name__} ended with {status}",
            hint="the output above says why",
            returncode=status.returncode,
        )


def script_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """Return the script that calls a function. Raises NotebookError for one that uses what is around it."""
    if not isinstance(function, types.FunctionType) or function.__name__ == "<lambda>":
        raise NotebookError(
            f"launch was given {function!r}", hint="give it a function that a cell defines with def"
        )
    found = {*function.__code__.co_freevars, *_outer_names(function.__code__, function.__globals__)}
    if outer := sorted(found - {function.__name__}):
        raise NotebookError(
            f"{function.__name__} uses {', '.join(outer)} of the notebook, which the workers do not have",
            hint="import and define it inside the function, or pass it in arguments=",
            names=outer,
        )
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise NotebookError(
            f"the source of {function.__name__} cannot be read: {error}", hint="define it in a cell"
        ) from error
    try:
        values = json.dumps(dict(arguments))
        inspect.signature(function).bind(**arguments)
    except (TypeError, ValueError) as error:
        raise NotebookError(
            f"the arguments do not fit {function.__name__}: {error}",
            hint="numbers, strings, None, lists and dicts of them, by the names of its parameters",
        ) from error
    return f"import json\n\n{source}\n\n{function.__name__}(**json.loads({values!r}))\n"


def _outer_names(code: types.CodeType, around: Mapping[str, Any]) -> Iterator[str]:
    """Yield the variables of the notebook that a function uses, or a function or class in it."""
    used = [(one.opname, one.argval) for one in dis.get_instructions(code) if isinstance(one.argval, str)]
    own = {name for operation, name in used if operation == "STORE_NAME"}  # of a class
    for operation, name in used:
        is_outer = name in around and name not in own and not hasattr(builtins, name)
        if operation in ("LOAD_GLOBAL", "LOAD_NAME") and is_outer and not name.startswith("__"):
            yield name
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _outer_names(constant, around)


def _run(command: Sequence[str]) -> ExitStatus:
    """Run a command, print its output in this thread, and pass interrupts on to it."""
    lines: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
    child = ChildProcess(
        "run",
        command,
        on_line=lambda name, stream, text: lines.put((stream, text)),
        on_exit=lambda child, status: lines.put(None),
        death_signal=signal.SIGTERM,
    )
    child.start()
    interrupts = 0
    while True:
        try:
            while (line := lines.get()) is not None:
                stream, text = line
                print(text, file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)
            break
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts == 2:
                print(_SECOND_SIGNAL, file=sys.stderr)  # noqa: T201
            child.signal(signal.SIGINT)
    assert child.status is not None
    return child.status
