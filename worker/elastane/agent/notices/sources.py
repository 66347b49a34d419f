"""The places that announce a reclaim, each with its documented requests and answers.

    aws      169.254.169.254, IMDSv2 or v1: spot/instance-action (two minutes), .../rebalance
    gcp      metadata.google.internal: instance/preempted (about 30 s)
    azure    169.254.169.254: scheduledevents, EventType Preempt (30 s)
    alibaba  100.100.100.200: instance/spot/termination-time (five minutes)
    file     a path that appears; http: a URL that answers 200: for anything else

A source is asked again and again by `watch`; it keeps nothing but what saves a request. It answers None
while there is no notice, and raises OSError (no answer) or NoticeFormatError (not as documented).
"""

from __future__ import annotations

import contextlib
import json
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal

from elastane.agent.notices.fetch import Fetch, Reply, Request
from elastane.agent.notices.notice import Notice, NoticeFormatError, parse_time

TOKEN_SECONDS = 21600
"""For how long a session token of a metadata service is asked for: six hours, its most."""

Capacity = Literal["spot", "on-demand", ""]

_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
"""What can stand in a header."""

_NO_TOKENS = (400, 403, 404, 405)
"""How a service answers that has no session tokens (IMDSv1; Alibaba Cloud outside hardened mode)."""


class Source(ABC):
    """One place that announces reclaims.

    base_url: of the metadata service, without a slash at its end. poll_seconds: how often to ask, as the
    provider advises or as its lead time demands.
    """

    name: ClassVar[str]
    default_url: ClassVar[str]
    poll_seconds: ClassVar[float] = 5.0

    def __init__(self, fetch: Fetch, base_url: str = "") -> None:
        self._fetch = fetch
        self.base_url = (base_url or self.default_url).rstrip("/")

    @abstractmethod
    def look(self) -> Notice | None:
        """Ask once."""

    @abstractmethod
    def is_here(self) -> bool:
        """Whether this node has the service at all; never raises."""

    def capacity(self) -> Capacity:
        """What kind of node this is: clouds have their metadata service on nodes of every kind.

        Raises as `look` does. "" is not known.
        """
        return ""

    def _get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return self._fetch(Request(self.base_url + path, headers=headers or {}))

    def _told_at(self, reply: Reply) -> float | None:
        """When the service answered by its own clock, which is the one its notices are made with."""
        try:
            return parse_time(reply.headers["date"], self.name)
        except (KeyError, NoticeFormatError):
            return None

    def _reclaim(self, reply: Reply, reason: str, at: float | None, lead_seconds: float) -> Notice:
        return Notice("reclaim", self.name, reason, at, lead_seconds, self._told_at(reply))

    def _wrong(self, reply: Reply, what: str) -> NoticeFormatError:
        return NoticeFormatError(
            f"{self.name}: {what} answered {reply.status}: {reply.body[:80]!r}",
            source=self.name,
            status=reply.status,
        )

    def _object(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise NoticeFormatError(f"{self.name}: not a JSON object: {text[:80]!r}", source=self.name)
        return found


class _TokenSource(Source):
    """A metadata service whose answers need a session token."""

    token_prefix: ClassVar[str]
    instance_id: ClassVar[re.Pattern[str]]

    def __init__(self, fetch: Fetch, base_url: str = "") -> None:
        super().__init__(fetch, base_url)
        self._token: str | None = None

    def _ask_token(self) -> str:
        header = {f"{self.token_prefix}-token-ttl-seconds": str(TOKEN_SECONDS)}
        reply = self._fetch(Request(f"{self.base_url}/latest/api/token", "PUT", header))
        if reply.status == 200 and _TOKEN.fullmatch(reply.body.strip()):
            return reply.body.strip()
        if reply.status in _NO_TOKENS:
            return (
                ""  # an older service, or a stand-in for one: if it wants a token all the same, it says 401
            )
        raise self._wrong(reply, "the request for a token")

    def _metadata(self, path: str) -> Reply:
        """GET with the token; one that is no longer taken is asked for again, once."""
        for last in (False, True):
            if self._token is None:
                # In a container the answer may be lost on its way (hop limit); it may do without a token.
                with contextlib.suppress(OSError):
                    self._token = self._ask_token()
            headers = {f"{self.token_prefix}-token": self._token} if self._token else {}
            reply = self._get(f"/latest/meta-data/{path}", headers)
            if reply.status not in (401, 403) or last:
                return reply
            self._token = None
        raise AssertionError("unreachable")

    def is_here(self) -> bool:
        try:
            reply = self._metadata("instance-id")
        except (OSError, NoticeFormatError):
            return False
        return reply.status == 200 and bool(self.instance_id.fullmatch(reply.body.strip()))


class Aws(_TokenSource):
    """Amazon EC2 spot instances.

    Source: EC2 user guide, "Spot Instance interruption notices" and "EC2 instance rebalance recommendations".
    """

    name = "aws"
    default_url = "http://169.254.169.254"
    token_prefix = "X-aws-ec2-metadata"
    instance_id = re.compile(r"i-[0-9a-f]{8,17}")

    def look(self) -> Notice | None:
        reply = self._metadata("spot/instance-action")
        if reply.status == 200:
            action = self._object(reply.body)
            what, at = action.get("action"), action.get("time")
            if not isinstance(what, str) or not isinstance(at, str):
                raise self._wrong(reply, "spot/instance-action")
            return self._reclaim(reply, f"spot {what} at {at}", parse_time(at, self.name), 120.0)
        if reply.status != 404:
            raise self._wrong(reply, "spot/instance-action")
        reply = self._metadata("events/recommendations/rebalance")
        if reply.status == 404:
            return None
        if reply.status != 200:
            raise self._wrong(reply, "events/recommendations/rebalance")
        at = self._object(reply.body).get("noticeTime")
        if not isinstance(at, str):
            raise self._wrong(reply, "events/recommendations/rebalance")
        parse_time(at, self.name)
        return Notice("rebalance", self.name, f"rebalance recommended since {at}")

    def capacity(self) -> Capacity:
        reply = self._metadata("instance-life-cycle")
        cycle = reply.body.strip()
        if reply.status != 200 or cycle not in ("spot", "on-demand", "scheduled", "capacity-block"):
            return ""
        return "spot" if cycle == "spot" else "on-demand"


class Alibaba(_TokenSource):
    """Alibaba Cloud ECS spot instances; a token only where the instance demands one (hardened mode).

    Source: ECS documentation, "Instance metadata" and "Spot instances: release notice".
    """

    name = "alibaba"
    default_url = "http://100.100.100.200"
    token_prefix = "X-aliyun-ecs-metadata"
    instance_id = re.compile(r"i-[0-9a-z]+")

    def look(self) -> Notice | None:
        reply = self._metadata("instance/spot/termination-time")
        if reply.status == 404:
            return None
        if reply.status != 200:
            raise self._wrong(reply, "instance/spot/termination-time")
        at = reply.body.strip()
        return self._reclaim(reply, f"spot release at {at}", parse_time(at, self.name), 300.0)


class Gcp(Source):
    """Google Compute Engine spot and preemptible instances.

    Source: Compute Engine documentation, "Spot VMs: detect preemption" and "Query metadata".
    """

    name = "gcp"
    default_url = "http://metadata.google.internal"
    # 30 seconds are all there is; the service answers from the host itself.
    poll_seconds = 1.0
    _headers: ClassVar[dict[str, str]] = {"Metadata-Flavor": "Google"}

    def look(self) -> Notice | None:
        reply = self._get("/computeMetadata/v1/instance/preempted", self._headers)
        answer = reply.body.strip().upper()
        # Anything may answer on that name; only the real service has this header.
        if reply.status != 200 or not self._is_google(reply) or answer not in ("TRUE", "FALSE"):
            raise self._wrong(reply, "instance/preempted")
        return self._reclaim(reply, "preempted", None, 30.0) if answer == "TRUE" else None

    def capacity(self) -> Capacity:
        reply = self._get("/computeMetadata/v1/instance/scheduling/preemptible", self._headers)
        answer = reply.body.strip().upper()
        if reply.status != 200 or not self._is_google(reply) or answer not in ("TRUE", "FALSE"):
            return ""
        return "spot" if answer == "TRUE" else "on-demand"

    def is_here(self) -> bool:
        try:
            return self._is_google(self._get("/computeMetadata/v1/instance/id", self._headers))
        except OSError:
            return False

    @staticmethod
    def _is_google(reply: Reply) -> bool:
        return reply.headers.get("metadata-flavor") == "Google"


class Azure(Source):
    """Azure spot virtual machines, and those of scale sets.

    Source: Azure documentation, "Scheduled Events for Linux VMs".
    """

    name = "azure"
    default_url = "http://169.254.169.254"
    poll_seconds = 1.0
    _headers: ClassVar[dict[str, str]] = {"Metadata": "true"}

    def __init__(self, fetch: Fetch, base_url: str = "") -> None:
        super().__init__(fetch, base_url)
        self._machine: str | None = None

    def look(self) -> Notice | None:
        if self._machine is None:
            self._machine = self._name()
        reply = self._get("/metadata/scheduledevents?api-version=2020-07-01", self._headers)
        if reply.status != 200:
            raise self._wrong(reply, "scheduledevents")
        events = self._object(reply.body).get("Events")
        if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
            raise self._wrong(reply, "scheduledevents")
        for event in events:
            resources = event.get("Resources") or []
            # Events of the whole scale set come to each of its machines.
            if event.get("EventType") == "Preempt" and self._machine in resources:
                at = str(event.get("NotBefore") or "")
                when = parse_time(at, self.name) if at else None  # empty once the event has started
                return self._reclaim(reply, f"preempted, not before {at or 'now'}", when, 30.0)
        return None

    def capacity(self) -> Capacity:
        query = "/metadata/instance/compute/priority?api-version=2021-02-01&format=text"
        reply = self._get(query, self._headers)
        priority = reply.body.strip().lower()
        if reply.status != 200 or priority not in ("spot", "low", "regular", ""):
            return ""
        return "spot" if priority in ("spot", "low") else "on-demand"

    def is_here(self) -> bool:
        try:
            return bool(self._name())
        except (OSError, NoticeFormatError):
            return False

    def _name(self) -> str:
        reply = self._get("/metadata/instance/compute/name?api-version=2021-02-01&format=text", self._headers)
        if reply.status != 200 or not reply.body.strip():
            raise self._wrong(reply, "instance/compute/name")
        return reply.body.strip()


class _Hook(Source):
    """What somebody else writes: empty, a time, or {"time": ..., "seconds": ..., "reason": ...}."""

    poll_seconds = 1.0

    def capacity(self) -> Capacity:
        return "spot"  # somebody announces that this node goes

    def _read(self, text: str, told_at: float | None = None) -> Notice:
        text = text.strip()
        told = {"time": text} if text and not text.startswith("{") else self._object(text or "{}")
        seconds, at = told.get("seconds", 30.0), told.get("time")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
            raise NoticeFormatError(f"{self.name}: not seconds: {seconds!r}", source=self.name)
        when = parse_time(str(at), self.name) if at is not None else None
        return Notice(
            "reclaim", self.name, str(told.get("reason") or "announced"), when, float(seconds), told_at
        )


class File(_Hook):
    """A file that appears: of a node agent, a sidecar, a script. base_url: its path."""

    name = "file"
    default_url = ""

    def look(self) -> Notice | None:
        try:
            return self._read(Path(self.base_url).read_text(errors="replace"))
        except FileNotFoundError:
            return None

    def is_here(self) -> bool:
        return bool(self.base_url)


class Http(_Hook):
    """A URL that answers 404 or 204 until there is a notice, and 200 then."""

    name = "http"
    default_url = ""

    def look(self) -> Notice | None:
        reply = self._get("")
        if reply.status in (204, 404):
            return None
        if reply.status != 200:
            raise self._wrong(reply, self.base_url)
        return self._read(reply.body, self._told_at(reply))

    def is_here(self) -> bool:
        return bool(self.base_url)


CLOUDS: dict[str, type[Source]] = {source.name: source for source in (Aws, Gcp, Azure, Alibaba)}
HOOKS: dict[str, type[Source]] = {source.name: source for source in (File, Http)}
