"""Names of workers and jobs where there is little room: on a terminal, beside a timeline. Pure."""

from __future__ import annotations

from collections.abc import Collection


def short(text: str, characters: int) -> str:
    """The text in that many characters: its beginning and its end, of which the end tells more."""
    if len(text) <= characters:
        return text
    head = (characters - 1) // 3
    return f"{text[:head]}…{text[head + 1 - characters :]}"


def short_names(names: Collection[str], characters: int) -> dict[str, str]:
    """Each name in that many characters. What all have in common behind a dot goes first.

    Workers on machines are often called by whole domain names, whose ends are all the same.
    """
    if all(len(name) <= characters for name in names):
        return {name: name for name in names}
    tail = _common_end(sorted(name[::-1] for name in names)) if len(names) > 1 else ""
    common = len(tail) - tail.index(".") if "." in tail else 0
    return {name: short(name[: len(name) - common] + "…" if common else name, characters) for name in names}


def _common_end(backwards: list[str]) -> str:
    """What sorted, reversed names end with: the first and the last of them differ the most."""
    first, last = backwards[0], backwards[-1]
    same = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first[: min(len(first), len(last)) if same is None else same][::-1]
