"""Renders the pages of runs as HTML."""

from __future__ import annotations

from typing import Final

from elastane_master.dashboard.actions import Action
from elastane_master.dashboard.pages import Notice, Visitor, render
from elastane_master.dashboard.run_actions import RUN_ACTIONS, offered
from elastane_master.dashboard.run_facts import RANKS_SHOWN, RunFacts, RunList
from elastane_master.decisions.runs.views import RunView

RUN_PARTS: Final = ("summary", "actions", "ranks", "log", "artifacts", "lineage", "decisions", "history")
"""Parts of a run's page; each has its own template, and is sent again when it has changed."""

LIST_PARTS: Final = ("waiting", "running", "ended", "runners")
"""Parts of the page of all runs."""


def runs_page(listed: RunList, visitor: Visitor, *, state: str) -> str:
    """Render the page of all runs. state: whether the master serves, in words."""
    return render(
        "runs.html", root="", visitor=visitor, state=state, live="runs/live", parts=list_parts(listed)
    )


def list_parts(listed: RunList) -> dict[str, str]:
    """Render all parts of the page of all runs, by name."""
    return {part: render(f"part_runs_{part}.html", root="", listed=listed) for part in LIST_PARTS}


def run_page(facts: RunFacts, visitor: Visitor, notice: Notice | None, query: str) -> str:
    """Render a run's page. query: of its URL, by which a rank's log was chosen; empty: of the first rank."""
    return render(
        "run.html",
        root="../",
        visitor=visitor,
        view=facts.view,
        facts=facts,
        notice=notice,
        live=f"{facts.view.run_id}/live{query}",
        parts=run_parts(facts, visitor),
    )


def run_parts(facts: RunFacts, visitor: Visitor) -> dict[str, str]:
    """Render all parts of a run's page, by name."""
    actions = offered(facts.view) if visitor.acts else ()
    shown = {
        "facts": facts,
        "view": facts.view,
        "ranks": facts.view.ranks[:RANKS_SHOWN],
        "actions": actions,
        "RUN_ACTIONS": RUN_ACTIONS,
    }
    return {part: render(f"part_run_{part}.html", root="../", **shown) for part in RUN_PARTS}


def confirm_run_page(view: RunView, action: Action, visitor: Visitor) -> str:
    """Render the page that asks to confirm an action."""
    return render("confirm_run.html", root="../../", visitor=visitor, view=view, action=action, live="")
