"""Generates docs/errors.md from elastane_proto/error_codes.toml; each code's heading is its anchor."""

from __future__ import annotations

import re

from docs_site.paths import DOCS
from elastane_proto.error_codes import entries

PAGE = DOCS / "errors.md"

_HEAD = """\
<!-- Written by `make docs-pages` out of proto/elastane_proto/error_codes.toml. -->
# Errors, by their codes

Every error that Elastane makes has a code that never changes. Commands print it (`error ELA401: ...`),
masters and workers behind the text (`... [ELA201]`), a traceback has it in its last line, `--json` in the
field `code`. `elastane errors CODE` says what stands here, without a browser. A refusal over gRPC bears no
code of its own: it is ELA1 and the two digits of the `ErrorReason` in its `ErrorDetail` (5, MISMATCH, is
ELA105), beside hint, facts and whether to try again.
"""


def render() -> str:
    """Return the page in Markdown."""
    parts, group = [_HEAD], ""
    for entry in entries().values():
        if entry.group != group:
            group = entry.group
            parts.append(f"## {group}\n")
        names = ", ".join(f"`{name}`" for name in entry.names)
        parts.append(
            f"### {entry.code}\n\n**{entry.title}** ({names})\n\n"
            f"Why: {_linked(entry.cause)}\n\nDo: {_linked(entry.todo)}\n"
        )
    return "\n".join(parts)


def _linked(text: str) -> str:
    """Turn each mention of a page of docs/ into a link."""
    return re.sub(r"docs/([\w/-]+\.md)", r"[docs/\1](\1)", text)
