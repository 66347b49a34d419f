"""The master's HTTP port: who is let in, what a standby says, limits, and an end within the time for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import parser

import patience
from elastane_master.app import Master
from elastane_master.decisions.events import SuspendRequested
from elastane_master.errors import CannotListen
from elastane_master.http import routes
from elastane_master.http.port import HttpPort
from elastane_master.http.routes import Access
from elastane_master.metrics.figures import Samples
from elastane_master.metrics.measures import MasterMeasures
from elastane_master.security.errors import InsecureListen
from elastane_master.security.settings import SecuritySettings
from elastane_master.servers.gate import Gate, TokenFile
from elastane_master.settings import MasterSettings
from elastane_master.store.connection import Store
from elastane_proto.job_settings import JobSettings
from integration.master_support import master_process, private_store, serving_master, store_down
from integration.security_support import Certificates, entry, standard_tokens, token_of
from integration.test_agent import ENVIRONMENT
from integration.test_master_process import run_cli
from slow import slow


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token_of(name)}"}


async def get(
    address: str,
    path: str,
    headers: dict[str, str] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    **more: Any,
) -> tuple[int, str]:
    """Status and text of one request on a connection of its own."""
    url = f"{'https' if tls else 'http'}://{address}{path}"
    method = more.pop("method", "GET")
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as session,
        session.request(method, url, headers=headers, ssl=tls or True, **more) as response,
    ):
        return response.status, await response.text()


@contextlib.asynccontextmanager
async def http_master(folder: Path, tokens: str = "", **security: Any) -> AsyncIterator[tuple[Master, str]]:
    """A master in this process with an HTTP port, and the address of that."""
    if tokens:
        security["token_file"] = folder / "tokens.toml"
        security["token_file"].write_text(tokens)
    file = folder / "http"
    settings = {"http": "127.0.0.1:0", "http_port_file": file, "security": SecuritySettings(**security)}
    async with serving_master(folder, **settings) as (master, _):
        yield master, file.read_text().strip()


def jobs_told(text: str) -> set[str]:
    families = parser.text_string_to_metric_families(text)
    return {
        sample.labels["job_name"]
        for family in families
        for sample in family.samples
        if "job_name" in sample.labels
    }


# ---------------------------------------------------------------- routes


async def test_routes_and_what_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with http_master(tmp_path) as (master, address):
        assert await get(address, "/healthz") == (200, "ok\n")
        assert await get(address, "/readyz") == (200, "ok\n")
        status, page = await get(address, "/")
        assert status == 200 and "/metrics" in page and "serves requests" in page
        status, text = await get(address, "/metrics")
        assert status == 200 and "elastane_master_leader 1.0" in text
        assert (await get(address, "/metrics", method="HEAD"))[0] == 200
        assert (await get(address, "/absent"))[0] == 404
        assert (await get(address, "/metrics", method="POST"))[0] == 405
        assert (await get(address, "/metrics", data=b"x" * 100))[0] == 413
        status, text = await get(address, "/metrics?x=" + "y" * 20_000)
        assert (status, text) == (400, "400: Bad Request\n")
        assert caplog.records == []  # what a stranger sends fills no log
        status, text = await get(address, "/metrics")
        assert master.measures.http.requests[("other", 405)] == 1
        assert 'elastane_http_requests_total{code="404",route="other"} 1.0' in text
        assert "/absent" not in text  # what callers ask for is no label


# ---------------------------------------------------------------- who is let in


async def test_metrics_need_a_readers_token_and_probes_do_not(tmp_path: Path) -> None:
    async with http_master(tmp_path, "".join(standard_tokens())) as (master, address):
        for path in ("/healthz", "/readyz", "/login"):
            assert (await get(address, path))[0] == 200
        async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as refused:
            assert refused.status == 401 and refused.headers["WWW-Authenticate"] == "Bearer"
            assert "requires a token" in await refused.text()
        assert (await get(address, "/metrics", {"Authorization": "Bearer wrong"}))[0] == 401
        assert (await get(address, "/metrics", {"Authorization": "Basic eDp5"}))[0] == 401
        status, text = await get(address, "/metrics", bearer("worker"))
        assert status == 403 and "operator or reader" in text
        assert (await get(address, "/metrics", bearer("reader")))[0] == 200
        status, text = await get(address, "/metrics", bearer("root"))
        assert 'elastane_rpc_refusals_total{reason="unauthenticated"} 3.0' in text
        assert 'elastane_rpc_refusals_total{reason="permission_denied"} 1.0' in text
        # Revoked: at the next request.
        (tmp_path / "tokens.toml").write_text(entry("root", ["operator"], ["*"]))
        master.refresh_security()
        assert (await get(address, "/metrics", bearer("reader")))[0] == 401
        assert (await get(address, "/metrics", bearer("root")))[0] == 200


async def test_a_token_sees_the_figures_of_its_jobs_only(tmp_path: Path) -> None:
    tokens = "".join(standard_tokens())
    async with http_master(tmp_path, tokens) as (master, address):
        assert master.jobs is not None
        for name in ("mine", "yours"):
            await master.jobs.create(name, JobSettings(ests=1))
        assert jobs_told((await get(address, "/metrics", bearer("reader")))[1]) == {"mine"}
        assert jobs_told((await get(address, "/metrics", bearer("stranger")))[1]) == {"yours"}
        assert jobs_told((await get(address, "/metrics", bearer("root")))[1]) == {"mine", "yours"}


async def test_the_quota_of_a_token_holds_here_too(tmp_path: Path) -> None:
    async with http_master(tmp_path, entry("slow", ["reader"], ["*"], requests_per_second=2)) as (_, address):
        statuses = [(await get(address, "/metrics", bearer("slow")))[0] for _ in range(4)]
    assert statuses[:2] == [200, 200] and 429 in statuses[2:]


async def test_open_metrics_need_no_token(tmp_path: Path) -> None:
    tokens = "".join(standard_tokens())
    async with http_master(tmp_path, tokens, http_open_metrics=True) as (_, address):
        assert (await get(address, "/metrics"))[0] == 200


async def test_certificates_of_callers_are_asked_for_where_a_right_is_needed(tmp_path: Path) -> None:
    ours, others = Certificates(tmp_path / "ours"), Certificates(tmp_path / "others")

    def context(certificates: Certificates | None, **of: Path) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(ours.ca))
        if certificates is not None:
            made.load_cert_chain(certificates.client_cert, certificates.client_key)
        return made

    (tmp_path / "state").mkdir()
    async with http_master(tmp_path / "state", **ours.master_options()) as (_, address):
        assert (await get(address, "/readyz", tls=context(None)))[0] == 200
        status, text = await get(address, "/metrics", tls=context(None))
        assert status == 401 and "client certificate" in text
        assert (await get(address, "/metrics", tls=context(ours)))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await get(address, "/readyz", tls=context(others))
        with pytest.raises(aiohttp.ClientError):  # no plain text on this port
            await get(address, "/healthz")
        # Renewed: the next handshake has the new one.
        ours.issue(ours.cert, ours.key, "127.0.0.1")
        host, port = address.split(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context(None))
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        assert shown == ssl.PEM_cert_to_DER_cert(
            ours.cert.read_text().split("-----END")[0] + "-----END CERTIFICATE-----\n"
        )


# ---------------------------------------------------------------- addresses


async def test_beyond_loopback_the_port_needs_what_grpc_needs(tmp_path: Path) -> None:
    master = Master(MasterSettings(listen="127.0.0.1:0", state_dir=tmp_path, http="0.0.0.0:0"))
    with pytest.raises(InsecureListen, match=r"0\.0\.0\.0:0.*no TLS"):
        await master.start()
    await master.stop()


async def test_an_address_in_use_is_said_before_any_job_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        http = f"127.0.0.1:{taken.getsockname()[1]}"
        master = Master(MasterSettings(listen="127.0.0.1:0", state_dir=tmp_path, http=http))
        with pytest.raises(CannotListen, match=http) as refused:
            await master.start()
        assert "--http" in refused.value.hint
        await master.stop()
    assert not (tmp_path / "store").exists()


async def test_a_bad_address_is_refused_with_exit_code_2(tmp_path: Path) -> None:
    code, said = await run_cli("--state-dir", str(tmp_path), "--http", "8080")
    assert code == 2 and "--http: " in said and "HOST:PORT" in said


def test_a_master_without_the_port_loads_no_http_server(tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
from elastane_master.app import Master
from elastane_master.settings import MasterSettings
async def main():
    master = Master(MasterSettings(listen="127.0.0.1:0", state_dir={str(tmp_path)!r}, http=""))
    await master.start()
    await master.stop()
asyncio.run(main())
loaded = [name for name in ("aiohttp", "prometheus_client", "elastane_master.http") if name in sys.modules]
sys.exit(", ".join(loaded) or None)
"""
    done = patience.run(
        [sys.executable, "-c", script],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- readiness


async def test_a_standby_says_who_leads_until_it_leads_itself(tmp_path: Path) -> None:
    async with private_store(tmp_path / "store") as store:
        first, second = await _on(store, tmp_path / "a"), await _on(store, tmp_path / "b")
        try:
            addresses = [(tmp_path / name / "http").read_text().strip() for name in "ab"]
            assert await get(addresses[0], "/readyz") == (200, "ok\n")
            status, why = await get(addresses[1], "/readyz")
            assert status == 503 and why.startswith("stands by: ") and f"at {first.address} leads" in why
            assert (await get(addresses[1], "/healthz"))[0] == 200
            assert f"at {first.address} leads" in (await get(addresses[1], "/"))[1]
            standing_by = (await get(addresses[1], "/metrics"))[1]
            assert "elastane_master_leader 0.0" in standing_by
            await first.jobs.create("j", JobSettings(ests=1))
            assert jobs_told((await get(addresses[1], "/metrics"))[1]) == set()
            await first.stop()
            async with patience.within(20):
                while (await get(addresses[1], "/readyz"))[0] != 200:
                    await asyncio.sleep(0.02)
            leads = (await get(addresses[1], "/metrics"))[1]
            assert "elastane_master_leader 1.0" in leads and "elastane_master_takeovers_total 1.0" in leads
            assert "elastane_master_fencing_token 2.0" in leads
            assert jobs_told(leads) == {"j"}
        finally:
            await first.stop()
            await second.stop()


async def _on(store: Store, folder: Path) -> Master:
    folder.mkdir()
    master = Master(
        MasterSettings(
            listen="127.0.0.1:0", store=store.url, http="127.0.0.1:0", http_port_file=folder / "http",
            leader_lease_seconds=1.0, stop_grace_seconds=0.5,
        )
    )  # fmt: skip
    await master.start()
    return master


async def test_a_store_that_is_away_is_not_ready_but_alive(tmp_path: Path) -> None:
    async with http_master(tmp_path) as (master, address):
        await master.jobs.create("j", JobSettings(ests=1))
        async with store_down(master):
            # Something has to be written before it is known.
            asking = asyncio.create_task(master.jobs.get("j").submit(SuspendRequested("r")))
            async with patience.within(20):
                while (await get(address, "/readyz"))[0] == 200:
                    await asyncio.sleep(0.02)
            assert await get(address, "/readyz") == (503, "the store does not answer\n")
            assert (await get(address, "/healthz"))[0] == 200
            text = (await get(address, "/metrics"))[1]
            # The job's writes and those of the runs each notice it in their own time.
            assert "elastane_store_up 0.0" in text and "elastane_store_outages_total 0.0" not in text
            assert 'elastane_job_pending_appends{job_name="j"} 0.0' not in text
        await patience.wait_for(asking, 20)
        async with patience.within(20):
            while (await get(address, "/readyz"))[0] != 200:
                await asyncio.sleep(0.02)
        assert "elastane_store_up 1.0" in (await get(address, "/metrics"))[1]


# ---------------------------------------------------------------- limits


class _Served:
    """A master that serves nothing but its port."""

    def __init__(self) -> None:
        self.measures, self.leads, self.jobs = MasterMeasures(), True, None
        self.gate, self.store_reachable, self.fencing_token = Gate(TokenFile(None)), True, 0
        self.calls = None

    def not_ready(self) -> str:
        return ""


@contextlib.asynccontextmanager
async def small_port(connections_max: int, idle_seconds: float) -> AsyncIterator[tuple[_Served, str, int]]:
    served = _Served()
    port = HttpPort(
        served, Access(), connections_max=connections_max, idle_seconds=idle_seconds, grace_seconds=0.2
    )
    await port.start("127.0.0.1", 0)
    host, _, number = port.address.rpartition(":")
    try:
        yield served, host, int(number)
    finally:
        await port.stop()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What came until the other side ended the connection."""
    received = b""
    with contextlib.suppress(ConnectionError):
        received = await patience.wait_for(reader.read(), 20)
    return received


async def test_a_connection_beyond_the_limit_takes_the_place_of_the_one_that_stood_idle_longest() -> None:
    async with small_port(4, 30.0) as (served, host, port):
        held = [await asyncio.open_connection(host, port) for _ in range(4)]
        assert (await get(f"{host}:{port}", "/healthz"))[0] == 200
        assert await ended(held[0][0]) == b""
        assert served.measures.http.refused == 1
        for reader, writer in held[1:]:  # the others were left alone
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        for _, writer in held:
            writer.close()


async def test_probes_answer_under_idle_connections_and_live_pages(tmp_path: Path) -> None:
    async with (
        serving_master(tmp_path, http="127.0.0.1:0") as (master, _),
        contextlib.AsyncExitStack() as held,
    ):
        host, _, port = master._http.address.rpartition(":")

        async def hold(sent: bytes) -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection(host, int(port))
            held.callback(writer.close)  # which keeps the writer: one that is forgotten closes itself
            writer.write(sent)
            return reader

        live = []
        for _ in range(200):
            reader = await hold(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            if (await reader.readline()).startswith(b"HTTP/1.1 200"):
                live.append(reader)
        assert len(live) == master.settings.http_connections_max // 2
        for _ in range(200):
            await hold(b"")
        for _ in range(3):
            for path in ("/healthz", "/readyz"):
                assert (await get(f"{host}:{port}", path))[0] == 200
        # The live pages that were let in go on; idle connections do not take their place.
        for reader in live:
            assert b"event: parts" in await patience.wait_for(reader.readuntil(b"event: parts"), 20)
        assert master.measures.http.connections <= master.settings.http_connections_max


@pytest.mark.parametrize(
    "sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: "], ids=["nothing", "half a header"]
)
async def test_a_client_that_does_not_come_to_its_request_is_ended(sent: bytes) -> None:
    async with small_port(4, 0.3) as (served, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(sent)
        dripping = asyncio.create_task(_drip(writer) if sent else asyncio.sleep(0))
        assert await ended(reader) == b""
        dripping.cancel()
        writer.close()
        assert served.measures.http.refused == 1 and served.measures.http.connections == 0


async def _drip(writer: asyncio.StreamWriter) -> None:
    """Bytes of a header that never ends."""
    with contextlib.suppress(ConnectionError):
        while True:
            await asyncio.sleep(0.05)
            writer.write(b"x")


@slow
async def test_a_client_that_does_not_read_its_answers_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gather(*_: object) -> Samples:
        return Samples()

    # Answers of a mebibyte: the buffers between the two are full soon.
    monkeypatch.setattr(routes, "gather", gather)
    monkeypatch.setattr(routes, "render", lambda *_: (bytes(1 << 20), "text/plain"))
    async with small_port(4, 0.5) as (served, host, port):
        with socket.create_connection((host, port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
            loop = asyncio.get_running_loop()
            with contextlib.suppress(OSError):
                async with patience.within(20):
                    while not served.measures.http.refused:
                        await loop.sock_sendall(client, request)
                        await asyncio.sleep(0.001)
        assert served.measures.http.refused == 1
        assert {status for _, status in served.measures.http.requests} == {200}


# ---------------------------------------------------------------- the end


async def test_sigterm_ends_the_port_with_the_master_in_time(tmp_path: Path) -> None:
    file = tmp_path / "http"
    async with master_process(tmp_path, "--http", "127.0.0.1:0", "--http-port-file", str(file)) as master:
        address = file.read_text().strip()
        host, _, port = address.rpartition(":")
        # A connection that stays, and one that never comes to its request.
        kept = await asyncio.open_connection(host, int(port))
        kept[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await kept[0].readuntil(b"ok\n")
        stuck = await asyncio.open_connection(host, int(port))
        stuck[1].write(b"GET /me")
        async with patience.within(8):  # compose and Kubernetes give 10 and 30 s
            log = await master.stop()
        assert master.process.returncode == 0 and "master stopped" in log
        assert await ended(kept[0]) == b"" and await ended(stuck[0]) == b""
        for _, writer in (kept, stuck):
            writer.close()
        assert not file.exists()
