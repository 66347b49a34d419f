"""What stands where: four kinds of pages, by what a reader comes for."""

from __future__ import annotations

from typing import Final, NamedTuple


class Group(NamedTuple):
    """A part of the navigation. pages: without ending, in order; one that is not there is left out."""

    title: str
    pages: tuple[str, ...]


REFERENCE: Final = "reference"

#: Pages that the repository has at its root, and where they lie in the site.
FROM_ROOT: Final = {
    "README.md": "readme.md",
    "ARCHITECTURE.md": "explanation/architecture.md",
    "SECURITY.md": "explanation/security-model.md",
    "CHANGELOG.md": "changelog.md",
}

GROUPS: Final = (
    Group("Tutorial", ("readme", "tutorial")),
    Group(
        "How to",
        (
            "howto/running",
            "howto/verify",
            "howto/converting",
            "howto/checkpoints",
            "howto/scale",
            "howto/drain",
            "howto/spot",
            "howto/sentinel",
            "howto/tasks",
            "howto/masters",
            "howto/repair",
            "howto/tokens",
            "howto/troubles",
            "watching",
            "dashboard",
            "deploy",
            "elasticjob",
            "hosts",
            "security",
            "upgrade",
        ),
    ),
    Group(
        "Reference",
        (
            "reference/cli",
            "reference/python",
            "reference/master-settings",
            "reference/protocol",
            "errors",
            "limits",
            "metrics",
            "exit-codes",
            "promises",
            "exactness",
            "benchmarks",
            "glossary",
            "testing-kubernetes",
            "changelog",
        ),
    ),
    Group(
        "Explanation",
        (
            "explanation/same-bits",
            "explanation/protocol",
            "explanation/determinism",
            "explanation/architecture",
            "reliability",
            "scaling",
            "explanation/security-model",
            "comparison",
            "decisions/index",
        ),
    ),
)

#: Whatever is in docs/ and not named above.
MORE: Final = Group("Further pages", ())
