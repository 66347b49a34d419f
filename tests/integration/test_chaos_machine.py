"""What `elastane chaos` breaks things with: relays, links, small disks, memory cages, clocks, stores."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastane_cli.chaos.machine import FalseClock, MemoryCage, SmallDisk, has_ip
from elastane_cli.chaos.network import Namespace, NetworkError, Relay
from elastane_cli.chaos.store_server import StoreServer
from store_versions import version_of

QUIET_SECONDS = 0.3
WAIT_SECONDS = 60.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_SECONDS)
        yield server


def connected(relay: Relay, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    host, _, port = relay.address.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=WAIT_SECONDS)
    server, _ = listener.accept()
    server.settimeout(WAIT_SECONDS)
    return client, server


def test_relay_carries_cuts_and_heals(listener: socket.socket) -> None:
    relay = Relay(f"127.0.0.1:{listener.getsockname()[1]}")
    client, server = connected(relay, listener)
    client.sendall(b"up")
    assert server.recv(10) == b"up"
    relay.up.cut = True
    # What was being read when the direction was cut may still pass.
    held = b"1"
    client.sendall(held)
    server.settimeout(QUIET_SECONDS)
    with pytest.raises(TimeoutError):
        while server.recv(1) == held:
            held = b"2"
            client.sendall(held)
    server.sendall(b"down")
    assert client.recv(10) == b"down"  # the other direction stands
    relay.heal()
    server.settimeout(WAIT_SECONDS)
    assert server.recv(10) == held
    relay.reset()
    with pytest.raises(ConnectionError):
        if client.recv(10) == b"":
            raise ConnectionResetError
    relay.close()
    with pytest.raises(OSError):
        connected(relay, listener)


def test_relay_delays(listener: socket.socket) -> None:
    relay = Relay(f"127.0.0.1:{listener.getsockname()[1]}")
    client, server = connected(relay, listener)
    relay.down.delay_seconds = 0.2
    started = time.monotonic()
    server.sendall(b"late")
    assert client.recv(10) == b"late"
    assert time.monotonic() - started >= 0.2
    relay.close()


ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    while data := connection.recv(1000):
        connection.sendall(data)
"""


@pytest.fixture
def far() -> Iterator[tuple[Namespace, socket.socket]]:
    """A namespace, and a connection to an echo in it."""
    if not has_ip():
        pytest.skip("network namespaces need root, `ip` and /dev/net/tun")
    number = secrets.randbelow(10_000)
    try:
        namespace = Namespace(f"elastane-test-{os.getpid()}", number)
    except NetworkError as error:
        pytest.skip(str(error))
    echo = None
    try:
        command = namespace.command([sys.executable, "-c", ECHO, namespace.far, "7007"])
        echo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert echo.stdout is not None and echo.stdout.readline() == "listening\n"
        with socket.create_connection((namespace.far, 7007), timeout=WAIT_SECONDS) as connection:
            yield namespace, connection
    finally:
        if echo is not None:
            echo.kill()
            echo.wait()
        namespace.close()
        namespace.close()


def answers(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    connection.sendall(b"x")
    try:
        return connection.recv(1) == b"x"
    except TimeoutError:
        return False


@pytest.mark.parametrize("direction", ["outward", "inward"])
def test_link_cut_one_way_and_healed(far: tuple[Namespace, socket.socket], direction: str) -> None:
    namespace, connection = far
    assert answers(connection, WAIT_SECONDS)
    getattr(namespace, direction).cut = True
    assert not answers(connection, QUIET_SECONDS)
    namespace.heal()
    connection.settimeout(WAIT_SECONDS)
    assert connection.recv(1) == b"x"  # TCP sends it again


def test_link_loses_and_delays_and_everything_arrives(far: tuple[Namespace, socket.socket]) -> None:
    namespace, connection = far
    namespace.inward.loss = namespace.outward.loss = 0.05
    namespace.inward.delay_seconds = 0.02
    started = time.monotonic()
    for _ in range(20):
        assert answers(connection, WAIT_SECONDS)
    assert time.monotonic() - started >= 20 * 0.01


def test_nothing_of_a_namespace_is_left_behind(far: tuple[Namespace, socket.socket]) -> None:
    namespace, _ = far
    namespace.close()
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert namespace.name not in listed


def test_small_disk_is_full_and_free_again(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "disk", 1)
    if disk.missing:
        pytest.skip(disk.missing)
    try:
        disk.fill()
        with pytest.raises(OSError) as full:
            (disk.folder / "file").write_bytes(b"x" * 5000)
        assert full.value.errno == errno.ENOSPC
        disk.free()
        (disk.folder / "file").write_bytes(b"x" * 5000)
    finally:
        disk.close()
        disk.close()
    assert list((tmp_path / "disk").iterdir()) == []


def test_kernel_kills_who_outgrows_the_cage() -> None:
    cage = MemoryCage(f"elastane-test-{secrets.token_hex(4)}", 32)
    if cage.missing:
        pytest.skip(cage.missing)
    eater = "import sys; sys.stdin.read(1); b = [b'x' * (1 << 20) for _ in range(400)]"
    process = subprocess.Popen([sys.executable, "-c", eater], stdin=subprocess.PIPE)
    cage.put_in(process.pid)
    assert cage.kills == 0
    process.communicate(b"x", timeout=WAIT_SECONDS)
    assert process.returncode == -signal.SIGKILL
    assert cage.kills == 1
    cage.close()


def test_false_clock_jumps_and_the_monotonic_one_does_not(tmp_path: Path) -> None:
    clock = FalseClock(tmp_path / "clock")
    if clock.missing:
        pytest.skip(clock.missing)
    tell = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", tell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **clock.environment},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None

    def told() -> tuple[float, float]:
        process.stdin.write("?\n")
        process.stdin.flush()
        wall, monotonic = process.stdout.readline().split()
        return float(wall) - time.time(), float(monotonic) - time.monotonic()

    try:
        assert abs(told()[0]) < WAIT_SECONDS
        clock.set(7200)
        assert abs(told()[0] - 7200) < WAIT_SECONDS
        assert abs(told()[1]) < WAIT_SECONDS
        clock.set(-7200)
        assert abs(told()[0] + 7200) < WAIT_SECONDS
    finally:
        process.kill()
        process.communicate()


def test_store_server_keeps_what_it_has_but_for_what_is_cut(tmp_path: Path) -> None:
    from redis import Redis

    store = StoreServer(tmp_path / "store", tmp_path / "store.log")
    try:
        store.start()
        with Redis.from_url(store.url) as client:
            if version_of(client) < (7, 2):
                pytest.skip("only Redis 7.2, or Valkey, tells when its log is on disk (WAITAOF)")
            client.set("first", "1")
            client.set("second", "2")
            # In the file, and not only with the server: where the disk stalls, replies come before the write.
            assert client.waitaof(num_local=1, num_replicas=0, timeout=30_000)[0] == 1
        assert not store.writes_fail
        store.kill()
        store.cut(3)
        store.start()
        with Redis.from_url(store.url) as client:
            assert (client.get("first"), client.get("second")) == (b"1", None)
    finally:
        store.stop()
