"""Shortened names of workers and jobs for narrow displays: terminals, labels beside a timeline. Pure."""

from __future__ import annotations

from collections.abc import Collection


def short(text: str, characters: int) -> str:
    """Shorten the text to `characters`, keeping its beginning and more of its end, which differs most."""
    if len(text) <= characters:
        return text
    head = (characters - 1) // 3
    return f"{text[:head]}…{text[head + 1 - characters :]}"


def short_names(names: Collection[str], characters: int) -> dict[str, str]:
    """Shorten each name to `characters`; an ending common to all, from a dot on, is removed first.

    Workers on machines are often named by full domain names, which share their endings.
    """
    if all(len(name) <= characters for name in names):
        return {name: name for name in names}
    tail = _common_end(sorted(name[::-1] for name in names)) if len(names) > 1 else ""
    common = len(tail) - tail.index(".") if "." in tail else 0
    return {name: short(name[: len(name) - common] + "…" if common else name, characters) for name in names}


def _common_end(backwards: list[str]) -> str:
    """Return the common suffix of names, given reversed and sorted."""
    # Sorted, the first and the last name share no longer prefix than any other pair.
    first, last = backwards[0], backwards[-1]
    same = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first[: min(len(first), len(last)) if same is None else same][::-1]
