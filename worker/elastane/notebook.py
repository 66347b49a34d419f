"""Elastic training from a notebook's cell: `import elastane.notebook`, and `launch(train, ests=4, ...)`.

Workers are processes of their own, so the function's source is written to a script, which `elastane run`
trains. What the function uses has to be in it: nothing of the notebook's state reaches the workers.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import itertools
import json
import os
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
        path = Path(folder) / f"cell_{function.__name__}.py"  # a name that hides no module
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
    name = function.__name__
    try:
        written = inspect.getsource(function)
        source = textwrap.dedent(written)
        definition = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError) as error:
        raise NotebookError(
            f"the source of {name} cannot be read: {error}", hint="define it in a cell"
        ) from error
    if not isinstance(definition, ast.FunctionDef) or inspect.isgeneratorfunction(function):
        raise NotebookError(f"{name} is no plain function", hint="neither async nor with yield")
    if definition.decorator_list:
        raise NotebookError(
            f"{name} has a decorator, which the workers do not have", hint="use it inside the function"
        )
    if source != written and any(_is_long_text(node) for node in ast.walk(definition)):
        raise NotebookError(
            f"{name} is indented in its cell, and has text of several lines, which would change",
            hint="define it at the left margin",
        )
    around = function.__globals__
    found = {*function.__code__.co_freevars, *_outer_names(function.__code__, around)}
    found |= {used for used in _names_of_signature(definition) if _is_outer(used, around)}
    if outer := sorted(found - {name}):
        raise NotebookError(
            f"{name} uses {', '.join(outer)} of the notebook, which the workers do not have",
            hint="import and define it inside the function, or pass it in arguments=",
            names=outer,
        )
    try:
        values = json.dumps(dict(arguments))
        inspect.signature(function).bind(**arguments)
    except (TypeError, ValueError) as error:
        raise NotebookError(
            f"the arguments do not fit {name}: {error}",
            hint="numbers, strings, None, lists and dicts of them, by the names of its parameters",
        ) from error
    if changed := [key for key, value in json.loads(values).items() if value != arguments[key]]:
        raise NotebookError(
            f"the arguments {', '.join(changed)} of {name} would arrive changed: JSON has lists, no tuples,"
            " and names of dicts are strings",
            hint="make them what JSON has, and the rest inside the function",
        )
    return f"import json\n\n{source}\n\n{name}(**json.loads({values!r}))\n"


def _names_of_signature(definition: ast.FunctionDef) -> Iterator[str]:
    """Yield the names that are looked up when the function is defined: in annotations and defaults."""
    body = set(map(id, definition.body))
    parts = [part for part in ast.iter_child_nodes(definition) if id(part) not in body]
    for node in itertools.chain.from_iterable(map(ast.walk, parts)):
        if isinstance(node, ast.Name):
            yield node.id


def _is_long_text(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes) and node.lineno != node.end_lineno
    return isinstance(node, ast.JoinedStr) and node.lineno != node.end_lineno


def _is_outer(name: str, around: Mapping[str, Any]) -> bool:
    """True for a variable of the notebook, also if it hides a builtin."""
    return name in around and not (hasattr(builtins, name) and around[name] is getattr(builtins, name))


def _outer_names(code: types.CodeType, around: Mapping[str, Any]) -> Iterator[str]:
    """Yield the variables of the notebook that a function uses, or a function or class in it."""
    used = [(one.opname, one.argval) for one in dis.get_instructions(code) if isinstance(one.argval, str)]
    own = {name for operation, name in used if operation == "STORE_NAME"}  # of a class
    for operation, name in used:
        is_outer = name not in own and _is_outer(name, around)
        if operation in ("LOAD_GLOBAL", "LOAD_NAME") and is_outer and not name.startswith("__"):
            yield name
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _outer_names(constant, around)


def _run(command: Sequence[str]) -> ExitStatus:
    """Run a command, print its output in this thread, and pass interrupts on to it."""
    lines: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
    path = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]  # modules beside the notebook
    child = ChildProcess(
        "run",
        command,
        environment={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
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
