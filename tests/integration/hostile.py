"""Attacks by strangers on a master's port: what they cost it, and how they affect honest callers.

    python -m integration.hostile [--connections 1000] [--seconds 10] [--addresses 16] [--shared]
                                  [--only gzip] [--json]                                (make hostile)

A master with tokens, in a process of its own, on loopback. Attackers without a token keep so many
connections at it, each opened again as soon as it is ended; they speak HTTP/2 by hand, since no client of
gRPC's would do what they do. Meanwhile an honest caller asks for a job again and again, on a connection it
had before and on new ones; with --shared from an address of theirs, as behind one NAT. Attacks whose names
begin with "TLS" are on a master with a certificate: on its handshake, or after it.
Reported are the most memory the master had beyond that at rest, and the honest calls' times. Exits with 1
where an honest call failed or the memory grew by more than `MEBIBYTES_MAX`, with TLS `TLS_MEBIBYTES_MAX`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import itertools
import json
import logging
import os
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import trustme

from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_proto.v1 import job_pb2, job_pb2_grpc
from integration.security_support import entry, token_of

MEBIBYTE = 2**20
MEBIBYTES_MAX = 50
TLS_MEBIBYTES_MAX = 100
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
LIST, CHECK = "/elastane.v1.JobService/List", "/grpc.health.v1.Health/Check"
REOPEN_SECONDS = 0.02
CALL_SECONDS_MAX = 30.0
TLS_NAME = "master.test"
BOMB = gzip.compress(bytes(60 * MEBIBYTE), 9)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name: str, value: str) -> bytes:
    """A header field as a literal without indexing."""
    return b"\x00" + b"".join(_length(len(part)) + part.encode() for part in (name, value))


def _length(number: int) -> bytes:
    if number < 127:
        return bytes([number])
    number, parts = number - 127, [127]
    while number >= 128:
        parts.append(number % 128 + 128)
        number //= 128
    return bytes([*parts, number])


def request(path: str, **more: str) -> bytes:
    """The block of headers of a call."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    fields |= {"content-type": "application/grpc", **{name.replace("_", "-"): more[name] for name in more}}
    return b"".join(header(name, value) for name, value in fields.items())


@dataclass
class Stranger:
    """One hostile connection; its preface is sent, unless it is to attack the TLS handshake."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *frames: bytes) -> None:
        self.writer.writelines(frames)
        await self.writer.drain()

    async def frames(self) -> AsyncIterator[tuple[int, int, bytes]]:
        """Yield the master's frames: kind, stream, payload."""
        while True:
            head = await self.reader.readexactly(9)
            length = int.from_bytes(head[:3], "big")
            yield head[3], int.from_bytes(head[5:9], "big"), await self.reader.readexactly(length)

    async def swallow(self) -> None:
        with contextlib.suppress(OSError):
            while await self.reader.read(1 << 16):
                pass


async def bombs(one: Stranger, **headers: str) -> None:
    """Requests of 60 kB that are 60 MB once inflated."""
    message = b"\x01" + struct.pack(">I", len(BOMB)) + BOMB
    parts = [message[at : at + 16000] for at in range(0, len(message), 16000)]
    await one.send(
        frame(HEADERS, END_HEADERS, 1, request(LIST, grpc_encoding="gzip", **headers)),
        *(frame(DATA, END_STREAM * (part is parts[-1]), 1, part) for part in parts),
    )
    await one.swallow()


async def resets(one: Stranger) -> None:
    """Calls that are begun and reset, as fast as possible."""
    swallowing = asyncio.create_task(one.swallow())
    block = request(LIST)
    for stream in itertools.count(1, 2):
        await one.send(
            frame(HEADERS, END_HEADERS, stream, block), frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
        )
        if stream % 64 == 1:
            await asyncio.sleep(0)
        if swallowing.done():
            return


async def calls(one: Stranger) -> None:
    """Whole calls without a token, as fast as possible."""
    swallowing = asyncio.create_task(one.swallow())
    block = request(LIST)
    for stream in itertools.count(1, 2):
        await one.send(frame(HEADERS, END_HEADERS, stream, block), frame(DATA, END_STREAM, stream, bytes(5)))
        if swallowing.done():
            return


async def slow_headers(one: Stranger) -> None:
    """Headers that never end, a byte at a time."""
    swallowing = asyncio.create_task(one.swallow())
    block = request(LIST, x="y" * 8000)
    whole = frame(HEADERS, 0, 1, block)
    for at in range(len(whole)):
        await one.send(whole[at : at + 1])
        await asyncio.wait({swallowing}, timeout=0.5)
        if swallowing.done():
            return


async def never_reading(one: Stranger) -> None:
    """Calls and pings whose answers nobody reads."""
    one.writer.transport.pause_reading()  # type: ignore[attr-defined]
    block = request(CHECK)
    for stream in itertools.count(1, 2):
        await one.send(
            frame(HEADERS, END_HEADERS, stream, block),
            frame(DATA, END_STREAM, stream, bytes(5)),
            *(frame(PING, 0, 0, bytes(8)) for _ in range(10)),
        )


async def metadata(one: Stranger) -> None:
    """Headers of a mebibyte."""
    block = request(LIST, **{f"x{number}": "y" * 16000 for number in range(64)})
    parts = [block[at : at + 16000] for at in range(0, len(block), 16000)]
    await one.send(frame(HEADERS, 0, 1, parts[0]))
    for part in parts[1:]:
        await one.send(frame(CONTINUATION, END_HEADERS * (part is parts[-1]), 1, part))
    await one.swallow()


async def header_bombs(one: Stranger) -> None:
    """Headers that refer to a long entry of the compression table a thousand times, each in its own frame."""
    entry = b"\x40" + b"".join(_length(len(part)) + part for part in (b"xx", b"y" * (4096 - 34)))
    await one.send(
        frame(HEADERS, 0, 1, request(LIST) + entry),
        *(frame(CONTINUATION, END_HEADERS * (number == 1000), 1, b"\xbe") for number in range(1, 1001)),
    )
    await one.swallow()


async def bodies(one: Stranger) -> None:
    """A request to the open health check of which 2 GiB are announced, and as much sent as is taken."""
    await one.send(
        frame(HEADERS, END_HEADERS, 1, request(CHECK)),
        frame(DATA, 0, 1, b"\x00" + struct.pack(">I", 2**31 - 1)),
    )
    windows = {0: 65535, 1: 65535}
    zeros = frame(DATA, 0, 1, bytes(16000))
    async for kind, stream, payload in one.frames():
        if kind == RST_STREAM:
            return
        if kind == WINDOW_UPDATE:
            windows[stream] += int.from_bytes(payload, "big")
        elif kind == PING:
            await one.send(frame(PING, 1, 0, payload))
        elif kind == SETTINGS and payload:
            await one.send(frame(SETTINGS, 1, 0))
        while min(windows.values()) >= 16000:
            for number in windows:
                windows[number] -= 16000
            await one.send(zeros)


async def idle(one: Stranger) -> None:
    """Nothing at all."""
    await one.swallow()


def client_hello() -> bytes:
    """The first record of a TLS handshake."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        trusting().wrap_bio(ssl.MemoryBIO(), sent, server_hostname=TLS_NAME).do_handshake()
    return sent.read()


def trusting() -> ssl.SSLContext:
    """A client that speaks HTTP/2 with whatever certificate it is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def half_handshakes(one: Stranger) -> None:
    """A handshake whose second half never comes: keys are agreed on and signed for nobody."""
    await one.send(client_hello())
    await one.swallow()


async def slow_handshakes(one: Stranger) -> None:
    """The first record of a handshake, a byte at a time."""
    swallowing = asyncio.create_task(one.swallow())
    hello = client_hello()
    for at in range(len(hello)):
        await one.send(hello[at : at + 1])
        await asyncio.wait({swallowing}, timeout=0.5)
        if swallowing.done():
            return


async def handshakes(one: Stranger) -> None:
    """Handshakes that are broken off as soon as the master has done its part, as fast as possible."""
    await one.send(client_hello())
    with contextlib.suppress(OSError):
        await one.reader.read(1 << 16)


async def hellos(one: Stranger) -> None:
    """The first record of a handshake again and again, as if to renegotiate all the time."""
    swallowing = asyncio.create_task(one.swallow())
    hello = client_hello()
    while not swallowing.done():
        await one.send(*([hello] * 16))
        await asyncio.sleep(0)


ON_HANDSHAKES: dict[str, Callable[[Stranger], Awaitable[None]]] = {
    "TLS, half a handshake": half_handshakes,
    "TLS, slow handshakes": slow_handshakes,
    "TLS, handshakes broken off": handshakes,
    "TLS, handshakes begun anew": hellos,
}
OVER_TLS: dict[str, Callable[[Stranger], Awaitable[None]]] = {
    "TLS, idle": idle,
    "TLS, gzip": bombs,
    "TLS, rapid reset": resets,
    "TLS, calls without a token": calls,
    "TLS, never reading": never_reading,
    "TLS, huge metadata": metadata,
    "TLS, header bombs": header_bombs,
}
ATTACKS: dict[str, Callable[[Stranger], Awaitable[None]]] = {
    "idle": idle,
    "gzip": bombs,
    "rapid reset": resets,
    "calls without a token": calls,
    "slow headers": slow_headers,
    "never reading": never_reading,
    "huge metadata": metadata,
    "header bombs": header_bombs,
    "endless bodies": bodies,
    **ON_HANDSHAKES,
    **OVER_TLS,
}


@dataclass(frozen=True)
class Attackers:
    """Number of connections, and of addresses of 127.0.0.0/8. shared: 127.0.0.1 is one of them."""

    connections: int
    addresses: int
    shared: bool = False

    def address(self, number: int) -> str:
        high, low = divmod(number % self.addresses, 200)
        return f"127.{0 if self.shared else 1}.{high}.{low + 1}"


async def attack(kind: str, host: str, port: int, attackers: Attackers) -> None:
    """Keep this many hostile connections open until cancelled."""

    begun = asyncio.Barrier(attackers.connections + 1)
    context = trusting() if kind in OVER_TLS else None

    async def again_and_again(number: int) -> None:
        first = True
        source = attackers.address(number)
        while True:
            with contextlib.suppress(OSError, EOFError):
                reader, writer = await asyncio.open_connection(
                    host, port, local_addr=(source, 0), ssl=context, server_hostname=context and TLS_NAME
                )
                try:
                    one = Stranger(reader, writer)
                    if kind not in ON_HANDSHAKES:
                        await one.send(PREFACE, frame(SETTINGS, 0, 0))
                    if first:
                        first = False
                        await begun.wait()
                    await ATTACKS[kind](one)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(REOPEN_SECONDS)

    async with asyncio.TaskGroup() as group:
        for number in range(attackers.connections):
            group.create_task(again_and_again(number))
        await begun.wait()
        print("ready", flush=True)


@contextlib.contextmanager
def attacked(kind: str, address: str, attackers: Attackers) -> Iterator[None]:
    """An attack from a process of its own, for as long as the block lasts."""
    command = [sys.executable, "-m", "integration.hostile", "--attack", kind, "--address", address]
    command += ["--connections", str(attackers.connections), "--addresses", str(attackers.addresses)]
    command += ["--shared"] if attackers.shared else []
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
        assert process.poll() is None, f"the attackers ended with {process.returncode}"
    finally:
        process.kill()
        process.wait()


RETRIES = {"maxAttempts": 5, "initialBackoff": "0.01s", "maxBackoff": "0.1s", "backoffMultiplier": 2}
SERVICE = {
    "methodConfig": [{"name": [{}], "retryPolicy": RETRIES | {"retryableStatusCodes": ["UNAVAILABLE"]}}]
}


def connect(address: str, ca: bytes = b"", options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
    """A channel; ca: PEM of who signed the master's certificate, empty where it has none."""
    if not ca:
        return grpc.insecure_channel(address, options=options)
    named = (*options, ("grpc.ssl_target_name_override", TLS_NAME))
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca), options=named)


class Honest:
    """A caller with a token: one call after the other, every tenth on a new connection.

    A call that is cut off is made again, as agents, workers and commands do; its time is that of all tries.
    """

    def __init__(self, address: str, job: str, ca: bytes = b"") -> None:
        self.seconds: list[float] = []
        self.failures: list[str] = []
        self._address, self._job, self._ca = address, job, ca
        self._stop = threading.Event()
        self._channel = self._connect()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Honest:
        self._call(self._channel)
        self.seconds.clear()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._channel.close()

    def _connect(self) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.service_config", json.dumps(SERVICE))]
        return connect(self._address, self._ca, options)

    def _run(self) -> None:
        for number in itertools.count(1):
            if number % 10:
                self._call(self._channel)
            else:
                with self._connect() as channel:
                    self._call(channel)
            if self._stop.wait(0.02):
                return

    def _call(self, channel: grpc.Channel) -> None:
        began = time.perf_counter()
        try:
            job_pb2_grpc.JobServiceStub(channel).Get(
                job_pb2.JobServiceGetRequest(name=self._job),
                metadata=[("authorization", f"Bearer {token_of('operator')}")],
                timeout=CALL_SECONDS_MAX,
                wait_for_ready=True,
            )
        except grpc.RpcError as error:
            self.failures.append(f"{error.code()}: {error.details()}")
        self.seconds.append(time.perf_counter() - began)


@dataclass(frozen=True)
class Outcome:
    """Result of an attack. Memory in MiB beyond that at rest; times in ms."""

    attack: str
    most_mebibytes: float
    kept_mebibytes: float
    median_ms: float
    p99_ms: float
    calls: int
    failures: int


class Memory:
    """Resident memory of a process. begin: resets its peak."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def begin(self) -> None:
        (self._folder / "clear_refs").write_text("5")

    def mebibytes(self, field: str = "VmRSS") -> float:
        """Return VmRSS, the current size, or VmHWM, the peak since `begin`."""
        lines = (self._folder / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def measure(
    kind: str, master: EmbeddedMaster, job: str, seconds: float, attackers: Attackers, ca: bytes = b""
) -> Outcome:
    """One attack on a master that serves `job`."""
    memory = Memory(master.pid)
    with Honest(master.address, job, ca) as honest:
        rest = memory.mebibytes()
        memory.begin()
        with attacked(kind, master.address, attackers):
            time.sleep(seconds)
        most = memory.mebibytes("VmHWM")
    time.sleep(0.5)
    times = sorted(1e3 * value for value in honest.seconds)
    return Outcome(
        kind,
        round(most - rest, 1),
        round(memory.mebibytes() - rest, 1),
        round(statistics.median(times), 1),
        round(times[int(0.99 * (len(times) - 1))], 1),
        len(times),
        len(honest.failures),
    )


def pem_of(ca: trustme.CA | None) -> bytes:
    return ca.cert_pem.bytes() if ca is not None else b""


@contextlib.contextmanager
def guarded(
    folder: Path, *arguments: str, job: str = "mine", ca: trustme.CA | None = None
) -> Iterator[EmbeddedMaster]:
    """A master with a table of tokens and one job, in a process of its own; ca: of its certificate."""
    tokens = folder / "tokens.toml"
    tokens.write_text(entry("operator", ["operator"], ["mine*"]))
    if ca is not None:
        leaf, key = ca.issue_cert(TLS_NAME), folder / "master.key"
        leaf.private_key_pem.write_to_path(key)
        key.chmod(0o600)
        leaf.cert_chain_pems[0].write_to_path(folder / "master.pem")
        arguments = (*arguments, "--tls-cert", str(folder / "master.pem"), "--tls-key", str(key))
    master = EmbeddedMaster(folder / "state", arguments=["--token-file", str(tokens), *arguments])
    address = master.start()
    try:
        with connect(address, pem_of(ca)) as channel:
            job_pb2_grpc.JobServiceStub(channel).Create(
                job_pb2.JobServiceCreateRequest(name=job, settings=job_pb2.JobSettings(ests=1)),
                metadata=[("authorization", f"Bearer {token_of('operator')}")],
            )
        yield master
    finally:
        master.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--addresses", type=int, default=16, help="of which the connections come")
    parser.add_argument("--shared", action="store_true", help="the honest caller comes from one of them, too")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    parser.add_argument("--only", choices=ATTACKS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    attackers = Attackers(options.connections, options.addresses, options.shared)
    if options.attack:
        host, _, port = options.address.rpartition(":")
        logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each connection that was ended
        asyncio.run(attack(options.attack, host, int(port), attackers))
    bad = False
    for kind in [options.only] if options.only else ATTACKS:
        ca = trustme.CA() if kind.startswith("TLS") else None
        with tempfile.TemporaryDirectory() as folder, guarded(Path(folder), ca=ca) as master:
            outcome = measure(kind, master, "mine", options.seconds, attackers, pem_of(ca))
        most = TLS_MEBIBYTES_MAX if ca is not None else MEBIBYTES_MAX
        bad |= bool(outcome.failures) or outcome.most_mebibytes > most
        if options.json:
            print(json.dumps(asdict(outcome)), flush=True)
        else:
            print(
                f"{kind}: +{outcome.most_mebibytes:.0f} MiB, {outcome.kept_mebibytes:.0f} kept;"
                f" {outcome.calls} honest calls, {outcome.failures} failed,"
                f" median {outcome.median_ms:.1f} ms, p99 {outcome.p99_ms:.1f} ms",
                flush=True,
            )
    return bad


if __name__ == "__main__":
    sys.exit(main())
