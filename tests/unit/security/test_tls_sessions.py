"""TLS that the front ends: records, sessions without sockets, and handshakes by turns."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

import patience
from elastane_master.security.handshakes import FairQueue, Handshakes
from elastane_master.security.tls import ServerTls, TlsFiles
from elastane_master.security.tls_session import TlsBroken, TlsSession, whole_records

NAME = "master.test"


class Caller:
    """The other side of a session. prepare: changes its context."""

    def __init__(self, ca: trustme.CA, prepare: Callable[[ssl.SSLContext], None] = lambda _: None) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        ca.configure_trust(context)
        context.set_alpn_protocols(["h2"])
        prepare(context)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out, server_hostname=NAME)

    def shake(self, received: bytes = b"") -> bytes:
        self._in.write(received)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._out.read()

    def write(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self._out.read()

    def end(self) -> bytes:
        with contextlib.suppress(ssl.SSLError):
            self.tls.unwrap()
        return self._out.read()

    def read(self, received: bytes) -> bytes:
        self._in.write(received)
        data = b""
        with contextlib.suppress(ssl.SSLWantReadError):
            while True:
                data += self.tls.read(1 << 16)
        return data


def server(folder: Path, ca: trustme.CA, client_ca: trustme.CA | None = None) -> ServerTls:
    leaf, cert, key, roots = ca.issue_cert(NAME), folder / "cert", folder / "key", folder / "roots"
    leaf.cert_chain_pems[0].write_to_path(cert)
    leaf.private_key_pem.write_to_path(key)
    if client_ca is not None:
        client_ca.cert_pem.write_to_path(roots)
    return ServerTls(TlsFiles(cert, key, roots if client_ca is not None else None))


def connected(tls: ServerTls, caller: Caller) -> TlsSession:
    """A session whose handshake is done. Raises TlsBroken."""
    session, sent = tls.session(), b""
    for _ in range(5):
        sent = caller.shake(sent)
        sent = session.shake(sent)
    caller.shake(sent)
    assert session.is_open
    return session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_what_one_side_writes_the_other_reads(tmp_path: Path, version: ssl.TLSVersion) -> None:
    ca = trustme.CA()

    def prepare(context: ssl.SSLContext) -> None:
        context.maximum_version = version

    caller = Caller(ca, prepare)
    session = connected(server(tmp_path, ca), caller)
    assert caller.tls.version() == version.name.replace("_", ".")
    large = bytes(range(256)) * 1000
    opaque = session.opaque
    session.feed(caller.write(large))
    assert b"".join(iter(lambda: session.read(4096), b"")) == large
    assert opaque < session.opaque < opaque + 1000, "only what TLS adds is opaque"
    assert caller.read(session.write(memoryview(large))) == large
    session.feed(caller.write(b"x" * 100)[:50])
    assert session.read(4096) == b""


def test_nothing_is_kept_of_what_follows_the_callers_end(tmp_path: Path) -> None:
    ca = trustme.CA()
    caller = Caller(ca)
    session = connected(server(tmp_path, ca), caller)
    session.feed(caller.write(b"last words") + caller.end())
    assert session.read(4096) == b"last words"
    with pytest.raises(TlsBroken, match="ended"):
        session.read(4096)


def test_a_client_ca_may_be_an_intermediate_one(tmp_path: Path) -> None:
    ca = trustme.CA()
    issuing = ca.create_child_ca()
    leaf = issuing.issue_cert("worker.test")

    def with_certificate(context: ssl.SSLContext) -> None:
        leaf.configure_cert(context)

    assert connected(server(tmp_path, ca, issuing), Caller(ca, with_certificate)).is_open


def test_who_keeps_to_nothing_is_broken_off(tmp_path: Path) -> None:
    ca = trustme.CA()
    tls = server(tmp_path, ca)
    with pytest.raises(TlsBroken):
        tls.session().shake(b"GET / HTTP/1.1\r\n\r\n")

    def older(context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")

    with pytest.warns(DeprecationWarning), pytest.raises(TlsBroken, match=r"(?i)protocol|version"):
        connected(tls, Caller(ca, older))
    with pytest.raises(TlsBroken, match="HTTP/2"):
        connected(tls, Caller(ca, lambda context: context.set_alpn_protocols(["http/1.1"])))
    caller = Caller(ca)
    session = connected(tls, caller)
    record = caller.write(b"hello")
    session.feed(record[:-1] + bytes([record[-1] ^ 1]))
    with pytest.raises(TlsBroken):
        session.read(100)


def test_with_a_client_ca_only_its_callers_come_to_the_end_of_a_handshake(tmp_path: Path) -> None:
    ca, callers, others = trustme.CA(), trustme.CA(), trustme.CA()
    tls = server(tmp_path, ca, callers)
    own = callers.issue_cert("caller").configure_cert
    connected(tls, Caller(ca, own))
    for prepare in (others.issue_cert("caller").configure_cert, lambda _: None):
        with pytest.raises(TlsBroken) as refused:
            connected(tls, Caller(ca, prepare))
        assert refused.value.farewell, "it is told why"


def test_each_handshake_has_the_current_certificate(tmp_path: Path) -> None:
    first, second = trustme.CA(), trustme.CA()
    tls = server(tmp_path, first)
    caller = Caller(first)
    session = connected(tls, caller)
    server(tmp_path, second)
    connected(tls, Caller(second))
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(tls, Caller(first))
    session.feed(caller.write(b"still here"))
    assert session.read(100) == b"still here"


def test_handshakes_go_on_with_whole_records_only() -> None:
    record = b"\x16\x03\x01\x00\x04" + b"text"
    for cut in range(len(record)):
        assert whole_records(record[:cut]) == 0
        assert whole_records(2 * record + record[:cut]) == 2 * len(record)
    assert whole_records(b"GET / HTTP/1.1") == len(b"GET / HTTP/1.1")
    assert whole_records(b"\x16\x03\x01\xff\xff...") == len(b"\x16\x03\x01\xff\xff..."), (
        "no record is so long"
    )


def test_addresses_take_turns() -> None:
    turns: FairQueue[int] = FairQueue()
    for number in range(3):
        turns.add("a", number)
    turns.add("b", 10)
    turns.add("c", 20)
    assert [turns.take() for _ in range(6)] == [0, 10, 20, 1, 2, None]


class _Step:
    """A step that ends when it may. log: of what happened, shared by all."""

    def __init__(self, name: str, log: list[str], *, wanted: bool = True, fails: bool = False) -> None:
        self.may_end = threading.Event()
        self.is_done = asyncio.Event()
        self._name, self._log, self._wanted, self._fails = name, log, wanted, fails

    def wanted(self) -> bool:
        return self._wanted

    def run(self) -> str:
        assert threading.current_thread() is not threading.main_thread()
        self._log.append(f"{self._name} begins")
        assert self.may_end.wait(30)
        if self._fails:
            raise TlsBroken("no")
        return self._name

    def done(self, result: asyncio.Future[Any]) -> None:
        assert threading.current_thread() is threading.main_thread()
        self._log.append("fails" if result.exception() else f"{result.result()} ends")
        self.is_done.set()


async def test_a_thread_that_cannot_be_started_costs_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    handshakes = Handshakes(threads=1)
    one, two = _Step("one", log), _Step("two", log)
    with monkeypatch.context() as patch:
        patch.setattr(handshakes._pool, "submit", _no_thread)
        handshakes.submit("a", one)
        async with patience.within(30):
            await one.is_done.wait()
    handshakes.submit("a", two)
    async with patience.within(30):
        two.may_end.set()
        await two.is_done.wait()
    handshakes.close()
    assert log == ["fails", "two begins", "two ends"]


def _no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


async def test_handshakes_are_done_outside_the_loop_one_by_one() -> None:
    log: list[str] = []
    handshakes = Handshakes(threads=1)
    one, gone = _Step("one", log), _Step("gone", log, wanted=False)
    two, three = _Step("two", log, fails=True), _Step("three", log)
    for step, address in ((one, "a"), (gone, "a"), (three, "a"), (two, "b")):
        handshakes.submit(address, step)
    async with patience.within(30):
        for step in (one, two, three):
            step.may_end.set()
            await step.is_done.wait()
    handshakes.close()
    assert log == ["one begins", "one ends", "two begins", "fails", "three begins", "three ends"]
