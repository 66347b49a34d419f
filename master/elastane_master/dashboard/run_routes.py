"""Routes of the pages of runs; the gate decides on access, as for jobs.

/runs          queue, running, ended, runners     /runs/RUN           one run, with the log of a rank
/runs/live     its live updates                   /runs/RUN/live      its live updates (server-sent events)
                                                  /runs/RUN/ACTION    GET: confirmation page; POST: action

A run of an owner that the caller's token is not for is one that there is not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol
from urllib.parse import urlencode

from aiohttp import web
from google.protobuf.message import Message

from elastane_master.dashboard.answers import fields_of, html, sentence
from elastane_master.dashboard.live import CLOCK_SECONDS, PART_SECONDS_MIN, Live, Parts
from elastane_master.dashboard.pages import Notice, Visitor
from elastane_master.dashboard.run_actions import run_action_of, run_request_of, run_result_of
from elastane_master.dashboard.run_facts import RunGatherer
from elastane_master.dashboard.run_pages import confirm_run_page, list_parts, run_page, run_parts, runs_page
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs.run import RUN_ID_MAX
from elastane_master.decisions.runs.views import run_view
from elastane_master.runs.service import TrainingRuns
from elastane_master.security.tokens import Principal
from elastane_master.servers.errors import REFUSALS, as_rejection
from elastane_master.servers.gate import Gate, HttpCall

LIST_SECONDS: Final = 0.9
LISTS_KEPT: Final = 16
NUMBER_MAX: Final = 2**31 - 1


class Site(Protocol):
    """Parts of the dashboard that the pages of runs use."""

    @property
    def gate(self) -> Gate: ...
    @property
    def runs(self) -> TrainingRuns: ...
    @property
    def live(self) -> Live: ...
    def state(self) -> str: ...
    def authorization(self, request: web.Request) -> list[str]: ...
    def caller_of(self, request: web.Request, route: str) -> Principal: ...
    def require_right_place(self, request: web.Request) -> None: ...
    def require_form(self, request: web.Request) -> None: ...
    async def call(self, request: web.Request, rpc: str, message: Message) -> Any: ...
    def notice_of(self, page: str, number: str) -> Notice | None: ...
    def notice_page(self, page: str, notice: Notice) -> web.Response: ...
    def problem(self, request: web.Request, error: Rejection, root: str) -> web.Response: ...


class RunRoutes:
    """Handlers of the pages of runs of one master's dashboard."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._gatherers: tuple[TrainingRuns, RunGatherer] | None = None
        self._lists: dict[tuple[str, tuple[str, ...]], tuple[float, Parts]] = {}

    def add(self, router: web.UrlDispatcher) -> None:
        """Add all routes to an application's router."""
        router.add_get("/runs", self._runs)
        router.add_get("/runs/live", self._runs_live, allow_head=False)
        router.add_get("/runs/{run}", self._run)
        router.add_get("/runs/{run}/live", self._run_live, allow_head=False)
        router.add_get("/runs/{run}/{action}", self._confirm)
        router.add_post("/runs/{run}/{action}", self._act)

    def _gatherer(self) -> RunGatherer:
        runs = self._site.runs
        if self._gatherers is None or self._gatherers[0] is not runs:
            self._gatherers = (runs, RunGatherer(runs))
        return self._gatherers[1]

    def _visitor(self, caller: Principal) -> Visitor:
        return Visitor.of_runs(caller, known=self._site.gate.asks_for_tokens)

    # ---------------------------------------------------------------- all runs

    async def _runs(self, request: web.Request) -> web.Response:
        try:
            caller = self._site.caller_of(request, "/runs")
            listed = self._gatherer().list(caller.covers_owner)
            return html(runs_page(listed, self._visitor(caller), state=self._site.state()))
        except REFUSALS as error:
            return self._site.problem(request, as_rejection(error), root="")

    async def _runs_live(self, request: web.Request) -> web.StreamResponse:
        self._site.require_right_place(request)
        with self._site.gate.following("/runs/live", self._site.authorization(request)) as call:
            return await self._site.live.jobs(request, lambda: self._list(call.caller), call)

    async def _list(self, caller: Principal) -> Parts:
        """Return the parts of the list, rendered once a second for all callers with the same owners."""
        now = asyncio.get_running_loop().time()
        rights = (caller.name, caller.owners)
        made = self._lists.get(rights)
        if made is None or now - made[0] > LIST_SECONDS:
            if len(self._lists) >= LISTS_KEPT:
                self._lists.clear()
            made = self._lists[rights] = (now, list_parts(self._gatherer().list(caller.covers_owner)))
        return made[1]

    # ---------------------------------------------------------------- one run

    async def _run(self, request: web.Request) -> web.Response:
        try:
            caller = self._site.caller_of(request, "/runs/{run}")
            run_id = self._run_id(request, caller)
            rank, attempt = _number(request, "rank"), _number(request, "attempt")
            facts = await self._gatherer().facts(run_id, rank, attempt, caller.covers_owner)
            notice = self._site.notice_of(f"runs/{run_id}", request.query.get("notice", ""))
            wanted = {name: value for name, value in (("rank", rank), ("attempt", attempt)) if value}
            query = f"?{urlencode(wanted)}" if wanted else ""
            return html(run_page(facts, self._visitor(caller), notice, query))
        except REFUSALS as error:
            return self._site.problem(request, as_rejection(error), root="../")

    async def _run_live(self, request: web.Request) -> web.StreamResponse:
        self._site.require_right_place(request)
        route, authorization = "/runs/{run}/live", self._site.authorization(request)
        with self._site.gate.following(route, authorization) as call:
            run_id = self._run_id(request, call.caller)
            rank, attempt = _number(request, "rank"), _number(request, "attempt")
            return await self._site.live.serve(
                request, lambda: self._parts(call, run_id, rank, attempt), call
            )

    async def _parts(self, call: HttpCall, run_id: int, rank: int, attempt: int) -> AsyncIterator[Parts]:
        """Yield the parts of a run's page at its changes, and every other second: its output grows."""
        gatherer = self._gatherer()
        server = gatherer.server
        with server.watching(run_id) as changed:
            while True:
                seen = changed.count
                server.require_serving()
                caller = call.caller  # its rights may have changed
                gatherer.run(run_id, caller.covers_owner)
                facts = await gatherer.facts(run_id, rank, attempt, caller.covers_owner)
                yield run_parts(facts, self._visitor(caller))
                await asyncio.sleep(PART_SECONDS_MIN)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOCK_SECONDS / 2):
                        await changed.beyond(seen)

    def _run_id(self, request: web.Request, caller: Principal) -> int:
        """Return the run of a request. Raises Rejection unless the caller may see it."""
        text = request.match_info["run"]
        if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > RUN_ID_MAX:
            raise Rejection("not_found", f"there is no run {text[:40]!r}", hint="runs have numbers")
        return self._gatherer().run(int(text), caller.covers_owner).run_id

    # ---------------------------------------------------------------- actions

    async def _confirm(self, request: web.Request) -> web.Response:
        try:
            action = run_action_of(request.match_info["action"])
            caller = self._site.caller_of(request, "/runs/{run}")
            run_id = self._run_id(request, caller)
            if not action.confirmed:
                raise Rejection("not_found", f"{action.label}: press its button on the run's page")
            server = self._gatherer().server
            view = run_view(server.machine, run_id, server.clock())
            assert view is not None
            return html(confirm_run_page(view, action, self._visitor(caller)))
        except REFUSALS as error:
            return self._site.problem(request, as_rejection(error), root="../../")

    async def _act(self, request: web.Request) -> web.Response:
        try:
            self._site.require_form(request)
            action = run_action_of(request.match_info["action"])
            fields = await fields_of(request)
            # Before the rpc, so that a refusal can be shown on the run's page.
            run_id = self._run_id(request, self._site.caller_of(request, "/runs/{run}"))
        except REFUSALS as error:
            return self._site.problem(request, as_rejection(error), root="../../")
        try:
            answer = await self._site.call(request, action.rpc, run_request_of(action, run_id, fields))
            notice = Notice(run_result_of(action, answer))
        except REFUSALS as error:
            refusal = as_rejection(error)
            notice = Notice(sentence(refusal), refusal.hint, refused=True)
        return self._site.notice_page(f"runs/{run_id}", notice)


def _number(request: web.Request, name: str) -> int:
    """Return a number of the URL's query; 0 without one. Raises Rejection."""
    text = request.query.get(name, "")
    if text and (not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > NUMBER_MAX):
        raise Rejection("invalid_argument", f"{text[:40]!r} is not a number", field=name)
    return int(text or 0)
