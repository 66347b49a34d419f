"""Renders pages as HTML. Templates escape every value; this module makes no requests and no decisions."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from elastane_master.dashboard import curve_drawing, drawing, resource_facts, sparklines, step_times, words
from elastane_master.dashboard.actions import ACTIONS, Action
from elastane_master.dashboard.comparison import common_series, figures
from elastane_master.dashboard.curve_drawing import Scale, draw_curve
from elastane_master.dashboard.facts import EVENTS_SHOWN, WORKERS_SHOWN, EventRow, JobFacts, event_rows
from elastane_master.dashboard.job_list import ORDERS, STATES, JobRow, select
from elastane_master.dashboard.output_facts import OutputFacts
from elastane_master.dashboard.page_query import JobQuery, JobsQuery, page_number
from elastane_master.dashboard.time_axis import window, zooms
from elastane_master.dashboard.timeline import affordable, bounds, timeline
from elastane_master.decisions.amounts import NANOS
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.state import HALTED, OVER
from elastane_master.decisions.views import JobView
from elastane_master.jobs.limits import clip
from elastane_master.security.tokens import Principal
from elastane_planner.amounts import seconds_text
from elastane_proto.amounts import money_text, price_text
from elastane_scheduler.autoscaling.modes import mode_text

PARTS: Final = (
    "summary", "incidents", "actions", "timeline", "stages", "slots", "curves", "events", "workers",
    "resources", "steps", "queues", "cost", "contexts",
)  # fmt: skip
"""Parts of a job's page; each has its own template, and is sent again when it has changed."""

ASKED_PARTS: Final = ("timeline", "curves", "events", "workers")
"""Those of them that depend on what a viewer asks."""

NOTHING_ASKED: Final = JobQuery()

WHOLE_NAME_LENGTH_MAX: Final = 16
"""Names of workers up to this length stay on one line of a table; longer ones are broken."""

ASSETS: Final = {
    "dashboard.css": "text/css",
    "light.css": "text/css",
    "dark.css": "text/css",
    "dashboard.js": "text/javascript",
    "pointer.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Visitor:
    """The viewer of a page. known: True if logged in with a token. acts: True if buttons are allowed."""

    name: str
    known: bool
    acts: bool

    @classmethod
    def of(cls, caller: Principal, *, known: bool) -> Visitor:
        return cls(caller.name, known, "operator" in caller.roles)

    @classmethod
    def of_runs(cls, caller: Principal, *, known: bool) -> Visitor:
        """Return the viewer of a page of runs, on which submitters have buttons, too."""
        return cls(caller.name, known, not caller.roles.isdisjoint(("operator", "submitter")))


@dataclass(frozen=True, slots=True)
class Notice:
    """Message about the result of an action, or why something was refused."""

    text: str
    hint: str = ""
    refused: bool = False


@cache
def asset(name: str) -> bytes:
    """Return the content of one of ASSETS."""
    return resources.files("elastane_master.dashboard").joinpath("assets", name).read_bytes()


THEMES: Final = ("auto", "light", "dark")
"""Colours that a viewer may choose; auto: as the system."""


def theme_css(theme: str) -> bytes:
    """Return the style sheet with the colours of one of THEMES; of auto for any other."""
    if theme in ("light", "dark"):
        return asset(f"{theme}.css")
    return asset("light.css") + b"@media (prefers-color-scheme: dark) {\n" + asset("dark.css") + b"}\n"


@cache
def asset_version() -> str:
    """Return a text that changes with the content of the assets, so that browsers may cache them."""
    digest = hashlib.sha256()
    for name in ASSETS:
        digest.update(asset(name))
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Held:
    """A job that is held, not served. phase: "damaged" or "too_new". notice: the reason and the remedy."""

    phase: str
    notice: Notice


@dataclass(frozen=True, slots=True)
class Listed:
    """Contents of the list of jobs. held: jobs that are not served, by name."""

    jobs: Sequence[JobRow]
    held: Mapping[str, Held] = field(default_factory=dict)


def jobs_page(listed: Listed, asked: JobsQuery, visitor: Visitor, *, state: str) -> str:
    """Render the page with the list of jobs. state: whether the master serves, in words."""
    return render(
        "jobs.html",
        root="",
        visitor=visitor,
        state=state,
        live=f"live{asked.query()}",
        asked=asked,
        states=STATES,
        orders=ORDERS,
        parts={"jobs": jobs_part(listed, asked)},
    )


def jobs_part(listed: Listed, asked: JobsQuery) -> str:
    """Render only the table of jobs."""
    return render(
        "part_jobs.html",
        root="",
        listing=select(listed.jobs, asked),
        held=listed.held,
        asked=asked,
        spark_width=sparklines.WIDTH,
        spark_height=sparklines.HEIGHT,
    )


def job_page(
    facts: JobFacts,
    visitor: Visitor,
    notice: Notice | None = None,
    asked: JobQuery = NOTHING_ASKED,
) -> str:
    """Render a job's page. Raises Rejection if the filter of events is invalid."""
    view = facts.view
    asked.filter(facts.now)
    return render(
        "job.html",
        root="../",
        visitor=visitor,
        view=view,
        notice=notice,
        live=f"{quote(view.name, safe='')}/live{asked.query()}",
        asked=asked,
        parts=job_parts(facts, visitor) | asked_parts(facts, visitor, asked),
    )


def job_parts(facts: JobFacts, visitor: Visitor) -> dict[str, str]:
    """Render all parts of a job's page, by name, of which nothing else is asked.

    Equal for all viewers with the same `acts`.
    """
    actions = _offered(facts.view) if visitor.acts else ()
    shown = {"root": "../", "facts": facts, "view": facts.view, "acts": visitor.acts, "actions": actions}
    parts = {part: render(f"part_{part}.html", **shown) for part in PARTS if part not in ASKED_PARTS}
    return parts | _asked_parts(facts, visitor, NOTHING_ASKED)


def asked_parts(facts: JobFacts, visitor: Visitor, asked: JobQuery) -> dict[str, str]:
    """Render the parts that differ from those of `job_parts` by what is asked; none if nothing is."""
    return _asked_parts(facts, visitor, asked) if asked != NOTHING_ASKED else {}


def _asked_parts(facts: JobFacts, visitor: Visitor, asked: JobQuery) -> dict[str, str]:
    return {
        "timeline": _timeline_part(facts, asked),
        "curves": _curves_part(facts, asked),
        "events": _events_part(facts, asked),
        "workers": _workers_part(facts, visitor, asked),
    }


def _workers_part(facts: JobFacts, visitor: Visitor, asked: JobQuery) -> str:
    """Render a page of the workers: first those that are in no ring."""
    workers = sorted(facts.view.workers, key=lambda one: one.place == "member")
    pages = max(math.ceil(len(workers) / WORKERS_SHOWN), 1)
    page = min(page_number(asked.page), pages)
    return render(
        "part_workers.html",
        root="../",
        facts=facts,
        view=facts.view,
        acts=visitor.acts,
        workers=workers[(page - 1) * WORKERS_SHOWN : page * WORKERS_SHOWN],
        counts=Counter(one.place for one in workers),
        page=page,
        pages=pages,
        asked=asked,
    )


def _curves_part(facts: JobFacts, asked: JobQuery) -> str:
    scale = Scale.of(asked.scale, asked.smooth)
    curves = [draw_curve(name, {"": buckets}, scale) for name, buckets in facts.curves.items()]
    return render("part_curves.html", curves=curves, facts=facts)


def _timeline_part(facts: JobFacts, asked: JobQuery) -> str:
    notes = affordable(facts.notes)
    if not notes:
        return render("part_timeline.html", picture=None)
    whole = bounds(notes, facts.now)
    shown = window(*whole, asked.span, asked.began, asked.until)
    drawn = timeline(notes, facts.now, (shown.began, shown.ended) if shown is not None else None)
    picture = drawing.draw_timeline(drawn) if drawn is not None else None
    return render("part_timeline.html", picture=picture, zooms=zooms(*whole, shown), asked=asked)


def _events_part(facts: JobFacts, asked: JobQuery) -> str:
    problem = ""
    rows: list[EventRow] = []
    try:
        rows = event_rows(facts.notes, asked.filter(facts.now), each=asked.each_event)
    except Rejection as error:  # what is asked changes while it is typed
        problem = str(error)
    return render(
        "part_events.html",
        facts=facts,
        view=facts.view,
        rows=rows[:EVENTS_SHOWN],
        left_out=len(rows) - len(rows[:EVENTS_SHOWN]),
        problem=problem,
    )


def compare_page(jobs: Sequence[JobFacts], asked: JobQuery, visitor: Visitor) -> str:
    """Render the page that has two jobs side by side. asked: how their curves are drawn."""
    scale = Scale.of(asked.scale, asked.smooth)
    return render(
        "compare.html",
        root="",
        visitor=visitor,
        live="",
        names=[one.view.name for one in jobs],
        rows=figures(jobs),
        curves=[draw_curve(name, series, scale) for name, series in common_series(jobs).items()],
        asked=asked,
        now=jobs[0].now,
        missing=[f"{one.view.name}: {text}" for one in jobs for text in one.missing],
    )


def output_page(facts: OutputFacts, view: JobView, visitor: Visitor) -> str:
    """Render the page with a worker's last lines."""
    return render("output.html", root="../../", visitor=visitor, view=view, facts=facts, live="")


def confirm_page(view: JobView, action: Action, visitor: Visitor) -> str:
    """Render the page that asks to confirm an action."""
    return render("confirm.html", root="../../", visitor=visitor, view=view, action=action, live="")


def login_page(why: str, hint: str, then: str, root: str) -> str:
    """Render the page that asks for a token.

    why: the problem with the previous token; empty if there was none. then: page to show after the login.
    """
    visitor = Visitor("", known=False, acts=False)
    return render("login.html", root=root, visitor=visitor, why=why, hint=hint, then=then, live="")


def problem_page(title: str, notice: Notice, visitor: Visitor | None, root: str) -> str:
    """Render a page with an error."""
    visitor = visitor or Visitor("", known=False, acts=False)
    return render("problem.html", root=root, visitor=visitor, title=title, notice=notice, live="")


def _offered(view: JobView) -> tuple[str, ...]:
    """Return the names of the actions that are possible in the job's phase; others would be refused."""
    if view.phase in OVER:
        return ("resume",) if view.phase == "failed" else ()
    if view.phase in HALTED:
        return ("resume", "scale", "cancel")
    saves = ("checkpoint", "suspend") if view.settings.checkpoint_url else ("suspend",)
    return ("scale", *saves, "cancel")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("elastane_master.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("age", "clock", "instant", "moment", "number", "size", "ranks", "units"):
        environment.filters[name] = getattr(words, name)
    environment.filters["clock_tag"] = partial(_time_tag, words.clock)
    environment.filters["moment_tag"] = partial(_time_tag, words.moment)
    environment.filters["seconds"] = seconds_text
    environment.filters["quoted"] = partial(quote, safe="")
    environment.filters["clip"] = clip  # 150 events that each list a ring of thousands would make megabytes
    environment.filters["scaling"] = mode_text
    environment.filters["name_class"] = lambda name: "name" if len(name) <= WHOLE_NAME_LENGTH_MAX else "long"
    environment.filters["phase"] = lambda phase: phase.replace("_", " ")
    environment.globals.update(
        width=drawing.WIDTH,
        left=drawing.LEFT,
        curve_width=curve_drawing.CURVE_WIDTH,
        curve_height=curve_drawing.CURVE_HEIGHT,
        curve_left=curve_drawing.CURVE_LEFT,
        curve_right=curve_drawing.CURVE_RIGHT,
        curve_bottom=curve_drawing.CURVE_BOTTOM,
        smoothings=curve_drawing.SMOOTHINGS,
        spark_width=resource_facts.SPARK_WIDTH,
        spark_height=resource_facts.SPARK_HEIGHT,
        bar_width=step_times.BAR_WIDTH,
        row=drawing.ROW,
        ACTIONS=ACTIONS,
        GLYPHS=drawing.GLYPHS,
        WORKERS_SHOWN=WORKERS_SHOWN,
        money=money_text,
        price=price_text,
        nanos=NANOS,
        scripted=False,
        THEMES=THEMES,
        version=asset_version(),
    )
    return environment


def _time_tag(form: Callable[[float], str], seconds: float) -> Markup:
    """Return a time in UTC that scripts of the page replace by the viewer's."""
    instant, moment = words.instant(seconds), words.moment(seconds)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(instant, moment, form(seconds))


def render(template: str, **values: Any) -> str:
    """Render a template with these values."""
    return _environment().get_template(template).render(**values)
