"""Generates the reference of the API for training scripts from signatures and docstrings in the sources."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from functools import cache
from typing import Final, NamedTuple

from docs_site.paths import ROOT
from docs_site.python_examples import EXAMPLES

_Callable = ast.FunctionDef | ast.AsyncFunctionDef


class Part(NamedTuple):
    """A public class or function. file, symbol: its place in the sources; name: its name in a script."""

    file: str
    symbol: str
    name: str
    members: bool = True


PARTS: Final = (
    Part("worker/elastane/__init__.py", "init", "elastane.init"),
    Part("worker/elastane/__init__.py", "save_model", "elastane.save_model"),
    Part("worker/elastane/runtime/job.py", "Job", "Job"),
    Part("worker/elastane/runtime/options.py", "TrainOptions", "Options of Job.prepare", members=False),
    Part("common/elastane_common/errors.py", "ElastaneError", "elastane.ElastaneError"),
    Part("common/elastane_common/errors.py", "RefusedError", "elastane.RefusedError"),
    Part("common/elastane_common/errors.py", "MasterUnreachableError", "elastane.MasterUnreachableError"),
    Part("common/elastane_common/errors.py", "UnsupportedError", "elastane.UnsupportedError"),
    Part("common/elastane_common/errors.py", "StepError", "elastane.StepError"),
)

_HEAD = """\
# Python

What a training script uses. `import elastane` imports neither torch nor gRPC; `elastane.init` does what
it needs. All errors are subclasses of `elastane.ElastaneError`; each has a [code](../errors.md), which says
what causes it and what to do.
"""
#: Width of a line of a signature; a longer one has a line for each parameter.
_COLUMNS: Final = 70
_ERROR: Final = re.compile(r"\b[A-Z]\w+Error\b")


def render() -> str:
    """Return the page in Markdown."""
    return "\n".join([_HEAD, *(_part(part) for part in PARTS)])


def _part(part: Part) -> str:
    tree = ast.parse((ROOT / part.file).read_text(encoding="utf-8"))
    node = next(n for n in tree.body if isinstance(n, _Callable | ast.ClassDef) and n.name == part.symbol)
    lines = [f"## {part.name}\n"]
    if isinstance(node, _Callable):
        lines.append(_signature(part.name, node))
    text = ast.get_docstring(node, clean=False) or ""
    lines += [_prose(text), _errors(text), _example(part.name)]
    if isinstance(node, ast.ClassDef) and not part.members:
        lines.append(_fields(node))
    elif isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, _Callable) and not member.name.startswith("_"):
                name, text = f"{part.name}.{member.name}", ast.get_docstring(member, clean=False) or ""
                owner = "error" if part.name.endswith("Error") else part.name.lower()
                lines += [
                    f"### {name}\n",
                    _signature(f"{owner}.{member.name}", member),
                    _prose(text),
                    _errors(text),
                    _example(name),
                ]
    return "\n".join(lines)


def _fields(node: ast.ClassDef) -> str:
    rows = ["| option | type | default |", "|---|---|---|"]
    for field in node.body:
        if isinstance(field, ast.AnnAssign):
            kind = ast.unparse(field.annotation).replace("|", r"\|")
            default = f"`{ast.unparse(field.value)}`" if field.value is not None else ""
            rows.append(f"| `{ast.unparse(field.target)}` | `{kind}` | {default} |")
    return "\n".join([*rows, ""])


def _signature(name: str, node: _Callable) -> str:
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    manager = any(ast.unparse(decorator).endswith("contextmanager") for decorator in node.decorator_list)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None and not manager else ""
    before = f"{'with ' if manager else ''}{name}("
    text = f"{before}{arguments}){returns}"
    if len(text) > _COLUMNS:
        text = "\n".join([before, *(f"    {one}," for one in _parameters(node.args)), f"){returns}"])
    return f"```python\n{text}\n```\n"


def _parameters(given: ast.arguments) -> list[str]:
    """Return the parameters of a signature one by one, without `self`."""

    def text(one: ast.arg, default: ast.expr | None = None, star: str = "") -> str:
        kind = f": {ast.unparse(one.annotation)}" if one.annotation is not None else ""
        value = f" = {ast.unparse(default)}" if default is not None else ""
        return f"{star}{one.arg}{kind}{value}"

    positional = [*given.posonlyargs, *given.args]
    without = [None] * (len(positional) - len(given.defaults))
    parts = [text(*pair) for pair in zip(positional, [*without, *given.defaults], strict=True)]
    if given.vararg is not None:
        parts.append(text(given.vararg, star="*"))
    elif given.kwonlyargs:
        parts.append("*")
    parts += [text(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        parts.append(text(given.kwarg, star="**"))
    return [part for part in parts if part != "self"]


@cache
def _codes() -> dict[str, str]:
    """Return the code of each error by the name of its class."""
    table = tomllib.loads((ROOT / "proto/elastane_proto/error_codes.toml").read_text(encoding="utf-8"))
    return {name: code for code, entry in table.items() for name in entry.get("names", ())}


def _errors(docstring: str) -> str:
    """Return links to the codes of the errors that a docstring names."""
    named = [name for name in dict.fromkeys(_ERROR.findall(docstring)) if name in _codes()]
    links = [f"`{name}` [{_codes()[name]}](../errors.md#{_codes()[name].lower()})" for name in named]
    return f"**Errors:** {', '.join(links)}\n" if links else ""


def _example(name: str) -> str:
    return f"**Example:**\n\n```python\n{EXAMPLES[name]}\n```\n" if name in EXAMPLES else ""


def _prose(docstring: str) -> str:
    """Convert a docstring to Markdown: paragraphs unchanged, `Args:`, `Raises:` and `Returns:` as lists."""
    parts, items = [], False
    for line in inspect.cleandoc(docstring).splitlines():
        if re.fullmatch(r"(Args|Raises|Returns):", line):
            parts += ["", f"**{line}**", ""]
            items = True
        elif items and (found := re.fullmatch(r"    (\w+): (.*)", line)):
            parts.append(f"- `{found[1]}`: {found[2]}")
        elif items and line.startswith("    "):
            parts.append(f"  {line.strip()}")
        else:
            items = False
            parts.append(line)
    return "\n".join(parts) + "\n"
