"""Metadata services of the clouds on loopback, answering as their documentation says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Metadata:
    """One service. Without a provider it answers 404 to everything, as another web server would.

    Attributes to set: `notice` (None, or what the provider's documents show for one), `garbage` (sent
    instead of every answer), `silent` (accepts and never answers; an event that ends it), `now` (the
    service's clock, seconds since the epoch; None: that of this machine), `tokens_known` (False: a service
    without session tokens), `tokens_lost` (True: the answer to the request for one never arrives),
    `capacity` (what the provider's documents show for the kind of node; None: the path is not there).
    """

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.notice: Any = None
        self.rebalance: str | None = None
        self.garbage: bytes | None = None
        self.silent: threading.Event | None = None
        self.now: float | None = None
        self.tokens_known = True
        self.tokens_lost = False
        self.capacity: str | None = None
        self.token_required = provider == "aws"
        self.tokens: set[str] = set()
        self.asked: list[str] = []
        self.url = ""

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, str, dict[str, str]]:
        """Status, body and headers."""
        found = getattr(self, f"_{self.provider}", lambda *_: None)(method, path, headers)
        return found if found is not None else (404, "<h1>404 - Not Found</h1>", {})

    def forget_tokens(self) -> None:
        """As when they have run out."""
        self.tokens.clear()

    def _tokens(
        self, method: str, path: str, headers: Any, prefix: str
    ) -> tuple[int, str, dict[str, str]] | None:
        if (method, path) == ("PUT", "/latest/api/token"):
            if not self.tokens_known:
                return 404, "", {}
            if not headers.get(f"{prefix}-token-ttl-seconds"):
                return 400, "", {}
            self.tokens.add(f"token-{len(self.asked)}")
            return 200, f"token-{len(self.asked)}", {}
        if self.token_required and headers.get(f"{prefix}-token") not in self.tokens:
            return 401, "", {}
        return None

    def _aws(self, method: str, path: str, headers: Any) -> tuple[int, str, dict[str, str]] | None:
        refused = self._tokens(method, path, headers, "X-aws-ec2-metadata")
        if refused:
            return refused
        if path == "/latest/meta-data/instance-id":
            return 200, "i-1234567890abcdef0", {}
        if path == "/latest/meta-data/instance-life-cycle" and self.capacity is not None:
            return 200, self.capacity, {}
        if path == "/latest/meta-data/spot/instance-action" and self.notice:
            return 200, f'{{"action": "terminate", "time": "{self.notice}"}}', {}
        if path == "/latest/meta-data/events/recommendations/rebalance" and self.rebalance:
            return 200, f'{{"noticeTime": "{self.rebalance}"}}', {}
        return None

    def _alibaba(self, method: str, path: str, headers: Any) -> tuple[int, str, dict[str, str]] | None:
        refused = self._tokens(method, path, headers, "X-aliyun-ecs-metadata")
        if refused:
            return refused
        if path == "/latest/meta-data/instance-id":
            return 200, "i-bp1234", {}
        if path == "/latest/meta-data/instance/spot/termination-time" and self.notice:
            return 200, f"{self.notice}\n", {}
        return None

    def _gcp(self, method: str, path: str, headers: Any) -> tuple[int, str, dict[str, str]] | None:
        google = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
        if headers.get("Metadata-Flavor") != "Google":
            return 403, "", google
        if path == "/computeMetadata/v1/instance/preempted":
            return 200, "TRUE" if self.notice else "FALSE", google
        if path == "/computeMetadata/v1/instance/scheduling/preemptible" and self.capacity is not None:
            return 200, self.capacity, google
        if path == "/computeMetadata/v1/instance/id":
            return 200, "4242", google
        return None

    def _azure(self, method: str, path: str, headers: Any) -> tuple[int, str, dict[str, str]] | None:
        if headers.get("Metadata") != "true":
            return 400, '{"error": "Bad request. Required metadata header not specified"}', {}
        if path == "/metadata/instance/compute/name?api-version=2021-02-01&format=text":
            return 200, "scale_set_3", {}
        if path.startswith("/metadata/instance/compute/priority?") and self.capacity is not None:
            return 200, self.capacity, {}
        if path == "/metadata/scheduledevents?api-version=2020-07-01":
            events = f"[{self.notice}]" if self.notice else "[]"
            return 200, f'{{"DocumentIncarnation": 2, "Events": {events}}}', {}
        return None

    def _http(self, method: str, path: str, headers: Any) -> tuple[int, str, dict[str, str]] | None:
        return (200, self.notice, {}) if self.notice is not None else None


def azure_event(kind: str, not_before: str, *resources: str, status: str = "Scheduled") -> str:
    """One event as in Azure's documentation."""
    names = ", ".join(f'"{name}"' for name in resources)
    return (
        f'{{"EventId": "602d9444-d2cd-49c7-8624-8643e7171297", "EventStatus": "{status}", '
        f'"EventType": "{kind}", "ResourceType": "VirtualMachine", "Resources": [{names}], '
        f'"NotBefore": "{not_before}", "Description": "", '
        f'"EventSource": "Platform", "DurationInSeconds": -1}}'
    )


@contextlib.contextmanager
def metadata_service(provider: str, host: str = "127.0.0.1") -> Iterator[Metadata]:
    """Serves `Metadata` on a port of its own."""
    metadata, ended = Metadata(provider), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            metadata.asked.append(f"{self.command} {self.path}")
            lost = metadata.tokens_lost and self.command == "PUT"
            if metadata.silent is not None or lost:
                (metadata.silent or ended).wait(30)
                return
            status, body, headers = metadata.answer(self.command, self.path, self.headers)
            raw = body.encode() if metadata.garbage is None else metadata.garbage
            self.send_response(status if metadata.garbage is None else 200)
            for name, value in {**headers, "Content-Length": str(len(raw))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_PUT = _serve  # noqa: N815  (the names are http.server's)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(metadata.now)  # type: ignore[arg-type]

        def log_message(self, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    server = Server((host, 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    metadata.url = f"http://{f'[{host}]' if ':' in host else host}:{server.server_address[1]}"
    try:
        yield metadata
    finally:
        ended.set()
        if metadata.silent is not None:
            metadata.silent.set()
        server.shutdown()
        server.server_close()
