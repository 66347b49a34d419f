"""Routes of the dashboard: translation of requests, refusals and forms. The gate decides on access.

/                   list of jobs        /jobs/JOB            one job
/compare            two jobs (?job=A&job=B)
/live               its live updates    /jobs/JOB/live       its live updates (server-sent events)
/login, /logout     sets the cookie     /jobs/JOB/ACTION     GET: confirmation page; POST: action
/theme              chooses colours     /assets/NAME         style, script, icon
                                        /runs, /runs/RUN/...   runs of the training service (`run_routes`)
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote

import structlog
from aiohttp import hdrs, web
from google.protobuf.message import Message

from elastane_master.dashboard import pages
from elastane_master.dashboard.actions import action_of, request_of, result_of
from elastane_master.dashboard.answers import fields_of, html, see_other, sentence
from elastane_master.dashboard.browser import (
    THEME_COOKIE,
    THEME_SECONDS,
    came_from,
    checked_token,
    cookie_name,
    cookie_value,
    require_own_name,
    require_same_site,
    token_of_cookie,
)
from elastane_master.dashboard.facts import Gatherer
from elastane_master.dashboard.job_list import JobRow, row_of
from elastane_master.dashboard.live import Live, PageRenderer, Parts
from elastane_master.dashboard.local_calls import LocalCalls
from elastane_master.dashboard.output_facts import output_facts
from elastane_master.dashboard.page_query import JobQuery, JobsQuery
from elastane_master.dashboard.pages import Held, Listed, Notice, Visitor
from elastane_master.dashboard.run_routes import RunRoutes
from elastane_master.dashboard.sparklines import Sparklines
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.views import job_view
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.job_servers import JobServers
from elastane_master.runs.service import TrainingRuns
from elastane_master.security.policy import http_rule_of, unauthenticated
from elastane_master.security.tokens import Principal
from elastane_master.servers.errors import REFUSALS, as_rejection
from elastane_master.servers.gate import Gate
from elastane_master.store.errors import held_phase

logger = structlog.get_logger(__name__)

ACTION_SECONDS: Final = 10.0
"""Time limit for an action's response. A checkpoint may take longer, and is saved all the same."""

NOTICES_MAX: Final = 256
LIST_SECONDS: Final = 0.9
LISTS_KEPT: Final = 16
JOBS_SHOWN: Final = 500

_STATUS: Final = {
    "invalid_argument": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "already_exists": 409,
    "stale": 409,
    "mismatch": 409,
    "wrong_phase": 409,
    "damaged": 409,
    "too_new": 409,
    "limit_exceeded": 413,
    "rate_limited": 429,
    "quota_exceeded": 429,
    "internal": 500,
}
_FORMS: Final = frozenset({"/login", "/logout", "/theme", "/jobs/{job}/{action}", "/runs/{run}/{action}"})
_TITLES: Final = {
    400: "This cannot be done",
    401: "Log in",
    403: "Not allowed",
    404: "Not found",
    409: "This cannot be done now",
    429: "Too much at once",
}


class Dashboard(Protocol):
    """Interface of the master as the dashboard uses it.

    jobs, runs: the jobs and the training service; None before the store is open. calls: in-process rpcs;
    None before the services exist.
    """

    jobs: JobServers | None
    runs: TrainingRuns | None
    calls: LocalCalls | None

    @property
    def gate(self) -> Gate: ...

    def not_ready(self) -> str:
        """Reason why requests would be refused; empty while they are served."""


@dataclass(frozen=True, slots=True)
class _Views:
    """The parts of the dashboard that show the jobs of one store."""

    jobs: JobServers
    gatherer: Gatherer
    live: Live
    sparklines: Sparklines


class DashboardRoutes:
    """Handlers of one master's dashboard. certificate: callers must have presented one."""

    def __init__(self, master: Dashboard, connections_max: int, *, certificate: bool = False) -> None:
        self._master = master
        self._connections_max = connections_max
        self._certificate = certificate
        self._own_names = frozenset({socket.gethostname().lower()})
        self._lists: dict[tuple[tuple[str, ...], JobsQuery], tuple[float, str]] = {}
        self._views: _Views | None = None
        self._notices: OrderedDict[str, tuple[str, Notice]] = OrderedDict()

    def add(self, app: web.Application) -> None:
        """Add all routes to an application."""
        router = app.router
        router.add_get("/", self._jobs)
        router.add_get("/live", self._jobs_live, allow_head=False)
        router.add_get("/compare", self._compare)
        router.add_post("/theme", self._theme)
        router.add_get("/login", self._login_form)
        router.add_post("/login", self._login)
        router.add_post("/logout", self._logout)
        router.add_get("/assets/{name}", self._asset)
        router.add_get("/jobs/{job}", self._job)
        router.add_get("/jobs/{job}/live", self._job_live, allow_head=False)
        router.add_get("/jobs/{job}/output", self._output)
        router.add_get("/jobs/{job}/{action}", self._confirm)
        router.add_post("/jobs/{job}/{action}", self._act)
        RunRoutes(self).add(router)

    # ---------------------------------------------------------------- pages

    async def _jobs(self, request: web.Request) -> web.Response:
        try:
            caller = self.caller_of(request, "/")
            visitor = self._visitor(caller)
            asked = JobsQuery.of(request.query)
            page = pages.jobs_page(await self._listed(caller), asked, visitor, state=self.state())
        except REFUSALS as error:
            return self.problem(request, as_rejection(error), root="")
        return html(page)

    async def _jobs_live(self, request: web.Request) -> web.StreamResponse:
        self.require_right_place(request)
        with self._master.gate.following("/live", self.authorization(request)) as call:
            asked = JobsQuery.of(request.query)

            async def made() -> Parts:
                return {"jobs": await self._list(call.caller, asked)}

            return await self._lives().live.jobs(request, made, call)

    async def _job(self, request: web.Request) -> web.Response:
        job = request.match_info["job"]
        try:
            visitor = self._visitor(self.caller_of(request, "/jobs/{job}", job))
            server = await self._job_server(job)
            notice = self.notice_of(f"jobs/{quote(job, safe='')}", request.query.get("notice", ""))
            facts, asked = await self._lives().gatherer.facts(server), JobQuery.of(request.query)
            return html(pages.job_page(facts, visitor, notice, asked))
        except REFUSALS as error:
            return self.problem(request, as_rejection(error), root="../")

    async def _compare(self, request: web.Request) -> web.Response:
        names = list(dict.fromkeys(request.query.getall("job", [])))
        try:
            if len(names) != 2:
                raise Rejection(
                    "invalid_argument",
                    f"{len(names)} jobs are chosen, not two",
                    hint="choose two jobs of the list",
                    field="job",
                )
            for name in names:  # each is a right of its own
                visitor = self._visitor(self.caller_of(request, "/jobs/{job}", name))
            servers = [await self._job_server(name) for name in names]
            found = [await self._lives().gatherer.facts(server) for server in servers]
            return html(pages.compare_page(found, JobQuery.of(request.query), visitor))
        except REFUSALS as error:
            return self.problem(request, as_rejection(error), root="")

    async def _job_live(self, request: web.Request) -> web.StreamResponse:
        job = request.match_info["job"]
        self.require_right_place(request)
        with self._master.gate.following("/jobs/{job}/live", self.authorization(request), job) as call:
            return await self._lives().live.job(request, await self._job_server(job), call)

    async def _output(self, request: web.Request) -> web.Response:
        job = request.match_info["job"]
        try:
            visitor = self._visitor(self.caller_of(request, "/jobs/{job}/output", job))
            server = await self._job_server(job)
            facts = output_facts(server.outputs, request.query.get("worker", ""))
            return html(pages.output_page(facts, job_view(server.machine, server.clock()), visitor))
        except REFUSALS as error:
            return self.problem(request, as_rejection(error), root="../../")

    async def _asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name == "theme.css":
            theme = pages.theme_css(request.cookies.get(THEME_COOKIE, ""))
            headers = {hdrs.CACHE_CONTROL: "no-cache", hdrs.VARY: hdrs.COOKIE}
            return web.Response(body=theme, content_type="text/css", charset="utf-8", headers=headers)
        if name not in pages.ASSETS:
            raise web.HTTPNotFound
        response = web.Response(body=pages.asset(name), content_type=pages.ASSETS[name], charset="utf-8")
        if request.query.get("v") == pages.asset_version():
            response.headers[hdrs.CACHE_CONTROL] = "public, max-age=86400, immutable"
        return response

    async def _theme(self, request: web.Request) -> web.Response:
        try:
            self.require_right_place(request)
            require_same_site(request.headers, by_cookie=False)
            theme = (await fields_of(request)).get("theme", "")
            if theme not in pages.THEMES:
                raise Rejection("invalid_argument", f"there are no colours {theme[:40]!r}", field="theme")
        except REFUSALS as error:
            return self.problem(request, as_rejection(error), root="")
        response = see_other(came_from(request.headers) or "./")
        response.set_cookie(
            THEME_COOKIE, theme, path="/", secure=request.secure, samesite="Strict", max_age=THEME_SECONDS
        )
        return response

    # ---------------------------------------------------------------- authentication

    async def _login_form(self, request: web.Request) -> web.Response:
        if not self._master.gate.asks_for_tokens:
            return see_other("./")
        return html(pages.login_page("", "", _local(request.query.get("then", "")), root=""))

    async def _login(self, request: web.Request) -> web.Response:
        try:
            require_same_site(request.headers, by_cookie=False)
            fields = await fields_of(request)
            token = checked_token(fields.get("token", ""))
            self.require_certificate(request)
            caller = self._master.gate.let_in("/login", [f"Bearer {token}"])
        except REFUSALS as error:
            return self.problem(request, as_rejection(error), root="", asked=True)
        first = "./" if caller.roles & http_rule_of("/").roles else "runs"
        response = see_other(_local(fields.get("then", "")) or first)
        tls = request.secure
        response.set_cookie(
            cookie_name(tls=tls), cookie_value(token), path="/", secure=tls, httponly=True, samesite="Strict"
        )
        logger.info("somebody logged in to the dashboard", caller=caller.name, peer=request.remote)
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        require_same_site(request.headers, by_cookie=True)
        response = see_other("login")
        tls = request.secure
        response.del_cookie(cookie_name(tls=tls), path="/", secure=tls, httponly=True, samesite="Strict")
        return response

    def authorization(self, request: web.Request) -> list[str]:
        """Return the values of the Authorization header, or without one the token from the cookie."""
        presented = request.headers.getall(hdrs.AUTHORIZATION, [])
        cookie = request.cookies.get(cookie_name(tls=request.secure))
        if presented or cookie is None or (token := token_of_cookie(cookie)) is None:
            return list(presented)
        return [f"Bearer {token}"]

    def caller_of(self, request: web.Request, route: str, job: str = "") -> Principal:
        """Return the caller's identity. Raises Rejection."""
        self.require_right_place(request)
        return self._master.gate.let_in(route, self.authorization(request), job)

    def _visitor(self, caller: Principal) -> Visitor:
        """Return the caller as a viewer of pages."""
        return Visitor.of(caller, known=self._master.gate.asks_for_tokens)

    def require_right_place(self, request: web.Request) -> None:
        self.require_certificate(request)
        # With TLS the browser has verified the name: no other host has this master's certificate.
        if not self._master.gate.asks_for_tokens and not request.secure:
            require_own_name(request.host, self._own_names)

    def require_certificate(self, request: web.Request) -> None:
        """Raise Rejection for a caller without a certificate where one is needed."""
        transport = request.transport
        if self._certificate and not (transport and transport.get_extra_info("peercert")):
            raise unauthenticated("this master requires a client certificate")

    # ---------------------------------------------------------------- actions

    async def _confirm(self, request: web.Request) -> web.Response:
        job = request.match_info["job"]
        try:
            action = action_of(request.match_info["action"])
            visitor = self._visitor(self.caller_of(request, "/jobs/{job}", job))
            server = await self._job_server(job)
            if not action.confirmed:
                raise Rejection("not_found", f"{action.label}: press its button on the job's page")
            return html(pages.confirm_page(job_view(server.machine, server.clock()), action, visitor))
        except REFUSALS as error:
            return self.problem(request, as_rejection(error), root="../../")

    async def _act(self, request: web.Request) -> web.Response:
        job = request.match_info["job"]
        try:
            self.require_form(request)
            action = action_of(request.match_info["action"])
            fields = await fields_of(request)
            message = request_of(action, job, fields)
            answer = await self.call(request, action.rpc, message, waits=action.name != "checkpoint")
        except REFUSALS as error:
            return await self._refused(request, as_rejection(error), job)
        return self.notice_page(f"jobs/{quote(job, safe='')}", Notice(result_of(action, fields, answer)))

    def require_form(self, request: web.Request) -> None:
        """Raise Rejection for a form that was not sent from a page of this dashboard."""
        self.require_right_place(request)
        require_same_site(request.headers, by_cookie=hdrs.AUTHORIZATION not in request.headers)

    async def call(self, request: web.Request, rpc: str, message: Message, *, waits: bool = True) -> Any:
        """Call an rpc for the caller of a request, and return its response. Raises Rejection.

        waits: False to return None if there is none in time.
        """
        calls = self._master.calls
        if calls is None:
            raise self.not_serving()
        peer = f"http:{request.remote}"
        try:
            async with asyncio.timeout(ACTION_SECONDS):
                return await calls.call(rpc, message, self.authorization(request), peer)
        except TimeoutError:
            if waits:
                raise Rejection(
                    "store_unavailable",
                    f"there was no answer within {ACTION_SECONDS:g} s",
                    hint="the page shows whether it was done",
                ) from None
        return None

    async def _refused(self, request: web.Request, error: Rejection, job: str) -> web.Response:
        """Redirect to the job's page with the refusal; show it alone if the caller may not see the job."""
        try:
            self._master.gate.let_in("/jobs/{job}", self.authorization(request), job)
            await self._job_server(job)
        except REFUSALS:
            return self.problem(request, error, root="../../")
        page = f"jobs/{quote(job, safe='')}"
        return self.notice_page(page, Notice(sentence(error), error.hint, refused=True))

    def notice_page(self, page: str, notice: Notice) -> web.Response:
        """Redirect to the page of a job or run with a notice: reloading it does not repeat the action."""
        number = secrets.token_urlsafe(9)
        self._notices[number] = (page, notice)
        while len(self._notices) > NOTICES_MAX:
            self._notices.popitem(last=False)
        return see_other(f"../../{page}?notice={number}")

    def notice_of(self, page: str, number: str) -> Notice | None:
        """Return the notice of this number if it belongs to the page."""
        of, notice = self._notices.get(number, ("", None))
        return notice if of == page else None

    # ---------------------------------------------------------------- contents

    def _job_servers(self) -> JobServers:
        jobs = self._master.jobs
        if jobs is None:
            raise self.not_serving()
        return jobs

    async def _job_server(self, job: str) -> JobServer:
        return await self._job_servers().find(job)

    @property
    def gate(self) -> Gate:
        return self._master.gate

    @property
    def runs(self) -> TrainingRuns:
        """The training service. Raises Rejection before the store is open."""
        if self._master.runs is None:
            raise self.not_serving()
        return self._master.runs

    @property
    def live(self) -> Live:
        """The streams of all pages. Raises Rejection before the store is open."""
        return self._lives().live

    def not_serving(self) -> Rejection:
        """Return the refusal while this master does not serve."""
        return Rejection("store_unavailable", f"this master {self.state()}")

    def _lives(self) -> _Views:
        jobs = self._job_servers()
        if self._views is None or self._views.jobs is not jobs:
            gatherer = Gatherer(jobs)
            live = Live(PageRenderer(gatherer), self._connections_max)
            self._views = _Views(jobs, gatherer, live, Sparklines(jobs))
        return self._views

    async def _listed(self, caller: Principal) -> Listed:
        """Return the jobs that the caller may see. Raises Rejection while this master does not serve."""
        jobs = self._master.jobs
        if jobs is None:
            return Listed([])
        seen = [server for server in jobs.all() if caller.covers(server.name)]
        lines = await self._lives().sparklines.of(jobs.all())
        rows = [row_of(server, lines.get(server.name, ("", ""))) for server in seen[:JOBS_SHOWN]]
        ended = [closed for closed in jobs.closed() if caller.covers(closed.name)]
        ended.sort(key=lambda closed: closed.ended_at, reverse=True)
        rows += [JobRow(closed.record.view) for closed in ended[: JOBS_SHOWN - len(rows)]]
        held = {
            name: Held(held_phase(error), Notice(str(error), error.hint, refused=True))
            for name, error in sorted(jobs.held().items())[:JOBS_SHOWN]
            if caller.covers(name)
        }
        return Listed(rows, held)

    async def _list(self, caller: Principal, asked: JobsQuery) -> str:
        """Return the list as HTML, rendered once a second for all callers with the same rights and question.

        Raises Rejection.
        """
        now = asyncio.get_running_loop().time()
        key = (caller.jobs, asked)
        made = self._lists.get(key)
        if made is None or now - made[0] > LIST_SECONDS:
            if len(self._lists) >= LISTS_KEPT:
                self._lists.clear()
            made = self._lists[key] = (now, pages.jobs_part(await self._listed(caller), asked))
        return made[1]

    def state(self) -> str:
        """Say whether this master serves."""
        why = self._master.not_ready()
        return f"does not serve requests now: {why}" if why else "serves requests"

    def problem(
        self, request: web.Request, error: Rejection, root: str, *, asked: bool = False
    ) -> web.Response:
        """Return a page with the error, or the login page if a token is missing or was not accepted.

        asked: True if the error is about a token just entered.
        """
        status = _STATUS.get(error.reason, 503)
        if status in (401, 403) and (asked or (status == 401 and self._master.gate.asks_for_tokens)):
            presented = asked or bool(self.authorization(request))
            why, hint = (sentence(error), error.hint if asked else "") if presented else ("", "")
            then = "" if asked else _local(request.path.lstrip("/"))
            response = html(pages.login_page(why, hint, then, root), status)
        else:
            title = _TITLES.get(status, "Not now")
            response = html(
                pages.problem_page(title, Notice(sentence(error), error.hint, refused=True), None, root),
                status,
            )
        if status == 401:
            response.headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
        return response


def is_form(request: web.Request) -> bool:
    """Return True if a body of this request is expected."""
    resource = request.match_info.route.resource
    return request.method == "POST" and resource is not None and resource.canonical in _FORMS


def _local(place: str) -> str:
    """Return a job's page, or one of runs, to show after the login, relative to it; "": another place."""
    parts = place.split("/")
    if len(parts) == 2 and parts[0] in ("jobs", "runs") and parts[1]:
        return f"{parts[0]}/{quote(parts[1], safe='')}"
    return "runs" if place == "runs" else ""
