"""Generates the reference of the API for training scripts from signatures and docstrings in the sources."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Final, NamedTuple

from docs_site.paths import ROOT

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
it needs.
"""


def render() -> str:
    """Return the page in Markdown."""
    return "\n".join([_HEAD, *(_part(part) for part in PARTS)])


def _part(part: Part) -> str:
    tree = ast.parse((ROOT / part.file).read_text(encoding="utf-8"))
    node = next(n for n in tree.body if isinstance(n, _Callable | ast.ClassDef) and n.name == part.symbol)
    lines = [f"## {part.name}\n"]
    if isinstance(node, _Callable):
        lines.append(_signature(part.name, node))
    lines.append(_prose(ast.get_docstring(node, clean=False) or ""))
    if isinstance(node, ast.ClassDef) and not part.members:
        lines.append(_fields(node))
    elif isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, _Callable) and not member.name.startswith("_"):
                lines += [
                    f"### {part.name}.{member.name}\n",
                    _signature(f"{part.name.lower()}.{member.name}", member),
                    _prose(ast.get_docstring(member, clean=False) or ""),
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
    text = f"{'with ' if manager else ''}{name}({arguments}){returns}"
    return f"```python\n{text}\n```\n"


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
