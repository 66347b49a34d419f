"""Release notes: the section of one version out of CHANGELOG.md, with what the reader does next."""

from __future__ import annotations

import re
from typing import Final

UNRELEASED: Final = "Unreleased"
_HEADING: Final = re.compile(r"^## \[([^\]]+)\](?: - (\S+))?[^\n]*$", re.MULTILINE)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


class NoSectionError(Exception):
    """The changelog has no usable section for the version; the text says what to write."""


def section(changelog: str, version: str) -> tuple[str, str]:
    """Return date (empty for Unreleased) and text of a version's section. Raises NoSectionError."""
    headings = list(_HEADING.finditer(changelog))
    for number, found in enumerate(headings):
        if found[1] != version:
            continue
        end = headings[number + 1].start() if number + 1 < len(headings) else len(changelog)
        text, date = changelog[found.end() : end].strip(), found[2] or ""
        if not text:
            raise NoSectionError(f"CHANGELOG.md: the section [{version}] is empty")
        if version != UNRELEASED and not _DATE.fullmatch(date):
            raise NoSectionError(
                f"CHANGELOG.md: write the day after the heading: ## [{version}] - YYYY-MM-DD"
            )
        return date, text
    raise NoSectionError(
        f"CHANGELOG.md has no section [{version}]: rename [{UNRELEASED}] to it, with the day of the release,"
        " or make a candidate (--candidate, CANDIDATE=1)"
    )


def render(changelog: str, version: str, *, candidate: bool = False) -> str:
    """Return the notes of a version in Markdown.

    candidate: the version is not released yet: its notes are the section Unreleased. Raises NoSectionError.
    """
    date, text = section(changelog, UNRELEASED if candidate else version)
    day = "candidate" if candidate else date
    return f"""\
# Elastane {version} ({day})

    sha256sum --check --ignore-missing SHA256SUMS
    pip install 'elastane[worker]=={version}'

How to check the signature of SHA256SUMS, what a version may change, and in which order to upgrade:
docs/versions.md and docs/upgrade.md.

{text}
"""
