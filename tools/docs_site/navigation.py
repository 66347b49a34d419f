"""Navigation of the site: groups of pages by the reader's purpose."""

from __future__ import annotations

from typing import Final, NamedTuple


class Group(NamedTuple):
    """A part of the navigation. pages: names without suffix, in order; a missing page is skipped."""

    title: str
    pages: tuple[str, ...]


REFERENCE: Final = "reference"

#: Pages at the root of the repository, and their paths in the site.
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
            "installing",
            "howto/running",
            "howto/submitting",
            "howto/verify",
            "howto/converting",
            "howto/from-torchrun",
            "howto/notebooks",
            "howto/hugging-face",
            "howto/lightning",
            "howto/hydra",
            "howto/pipelines",
            "howto/checkpoints",
            "howto/scale",
            "howto/autoscaling",
            "howto/pools",
            "howto/drain",
            "howto/spot",
            "howto/sentinel",
            "howto/tasks",
            "howto/simulate",
            "howto/training-service",
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
            "training-environment",
            "promises",
            "exactness",
            "benchmarks",
            "glossary",
            "testing-kubernetes",
            "versions",
            "changelog",
        ),
    ),
    Group(
        "Explanation",
        (
            "explanation/same-bits",
            "explanation/pipelines",
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

#: All pages of docs/ that are not named above.
MORE: Final = Group("Further pages", ())
