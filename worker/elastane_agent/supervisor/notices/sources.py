"""Sources of spot notices, each with the requests and answers that its provider documents.

    aws      169.254.169.254, IMDSv2 or v1: spot/instance-action (two minutes), .../rebalance
    gcp      metadata.google.internal: instance/preempted (about 30 s)
    azure    169.254.169.254: scheduledevents, EventType Preempt (30 s)
    alibaba  100.100.100.200: instance/spot/termination-time (five minutes)
    file     a path that appears; http: a URL that answers 200: for anything else

A source is polled by `watch`; it keeps no state except what saves a request. It returns None while there is
no notice, and raises OSError (no answer) or NoticeFormatError (an answer that is not as documented).
"""

from __future__ import annotations

import contextlib
import json
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal

from elastane_agent.supervisor.notices.fetch import Fetch, Reply, Request
from elastane_agent.supervisor.notices.notice import Notice, NoticeFormatError, parse_time

TOKEN_SECONDS = 21600
"""Requested lifetime of a session token of a metadata service: six hours, the maximum."""

Capacity = Literal["spot", "on-demand", ""]

_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
"""A token that is valid in an HTTP header."""

_NO_TOKENS = (400, 403, 404, 405)
"""Statuses with which a service without session tokens answers (IMDSv1; Alibaba Cloud in normal mode)."""


class Source(ABC):
    """One source of spot notices.

    base_url: URL of the metadata service, without a slash at the end. poll_seconds: polling interval that the
    provider advises or that its lead time requires.
    """

    name: ClassVar[str]
    default_url: ClassVar[str]
    poll_seconds: ClassVar[float] = 5.0

    def __init__(self, fetch: Fetch, base_url: str = "") -> None:
        self._fetch = fetch
        self.base_url = (base_url or self.default_url).rstrip("/")

    @abstractmethod
    def look(self) -> Notice | None:
        """Ask once; return the notice, or None. Raises OSError or NoticeFormatError."""

    @abstractmethod
    def is_here(self) -> bool:
        """True if this node has the service at all; never raises."""

    def capacity(self) -> Capacity:
        """Return whether this is a spot or an on-demand node; "" if unknown. Raises as `look` does.

        Needed because clouds run their metadata service on both kinds.
        """
        return ""

    def _get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return self._fetch(Request(self.base_url + path, headers=headers or {}))

    def _notified_at(self, reply: Reply) -> float | None:
        """Return the time of the answer by the service's own clock, with which its notices are made."""
        try:
            return parse_time(reply.headers["date"], self.name)
        except (KeyError, NoticeFormatError):
            return None

    def _reclaim(self, reply: Reply, reason: str, at: float | None, lead_seconds: float) -> Notice:
        return Notice("reclaim", self.name, reason, at, lead_seconds, self._notified_at(reply))

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
    """A metadata service that wants a session token with each request."""

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
        """GET with the session token; if that was refused, request a new token and try once more."""
        for last in (False, True):
            if self._token is None:
                # In a container the answer may be lost (IMDSv2's hop limit); the service may also accept
                # requests without a token.
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
    # The lead time is only 30 seconds; the service runs on the host itself, so polling is cheap.
    poll_seconds = 1.0
    _headers: ClassVar[dict[str, str]] = {"Metadata-Flavor": "Google"}

    def look(self) -> Notice | None:
        reply = self._get("/computeMetadata/v1/instance/preempted", self._headers)
        answer = reply.body.strip().upper()
        # Any server may answer under that name; only the real service sends this header.
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
            # Each machine of a scale set gets the events of all its machines.
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
    """A notice by the user's own tools: empty, a time, or {"time": ..., "seconds": ..., "reason": ...}."""

    poll_seconds = 1.0

    def capacity(self) -> Capacity:
        return "spot"  # a node with a hook for reclaims can be reclaimed

    def _read(self, text: str, notified_at: float | None = None) -> Notice:
        text = text.strip()
        announcement = {"time": text} if text and not text.startswith("{") else self._object(text or "{}")
        seconds, at = announcement.get("seconds", 30.0), announcement.get("time")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
            raise NoticeFormatError(f"{self.name}: not seconds: {seconds!r}", source=self.name)
        when = parse_time(str(at), self.name) if at is not None else None
        return Notice(
            "reclaim",
            self.name,
            str(announcement.get("reason") or "announced"),
            when,
            float(seconds),
            notified_at,
        )


class File(_Hook):
    """A file whose appearance is the notice, written by a node agent, a sidecar or a script.

    base_url: its path.
    """

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
    """A URL that answers 404 or 204 until there is a notice, and 200 from then on."""

    name = "http"
    default_url = ""

    def look(self) -> Notice | None:
        reply = self._get("")
        if reply.status in (204, 404):
            return None
        if reply.status != 200:
            raise self._wrong(reply, self.base_url)
        return self._read(reply.body, self._notified_at(reply))

    def is_here(self) -> bool:
        return bool(self.base_url)


CLOUDS: dict[str, type[Source]] = {source.name: source for source in (Aws, Gcp, Azure, Alibaba)}
