"""Where members meet, and who comes from outside: without the secret nothing is read or changed."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from elastane.collective import cpu_group, rendezvous
from elastane.collective.cpu_group import Messages
from elastane.collective.rendezvous import MemberStore, RendezvousError, RendezvousLate, RendezvousStore
from elastane.collective.ring_errors import RingBroken
from elastane.collective.transport import RingTransport
from elastane_proto.rendezvous import group_of, group_secret
from integration.ring_threads import in_threads

KEY = bytes(range(32))
WAIT_SECONDS = 20.0


@pytest.fixture
def store() -> Iterator[RendezvousStore]:
    store = RendezvousStore("127.0.0.1", KEY)
    yield store
    store.close()


def member(store: RendezvousStore, generation: int = 7, secret: bytes | None = None) -> MemberStore:
    host, _, port = store.address.rpartition(":")
    group = group_of(generation)
    secret = group_secret(KEY, group) if secret is None else secret
    return MemberStore(host, int(port), group, secret, WAIT_SECONDS)


def dial(store: RendezvousStore) -> socket.socket:
    host, _, port = store.address.rpartition(":")
    return socket.create_connection((host, int(port)), WAIT_SECONDS)


def test_members_share_keys_and_wait_for_one_another(store: RendezvousStore) -> None:
    first, second = member(store), member(store)
    first.set("a", b"1")
    assert second.multi_get(["a"]) == [b"1"] and second.add("n", 2) == 2 and first.add("n", 3) == 5
    assert not second.check(["a", "b"])
    with pytest.raises(RendezvousLate):
        second.wait(["b"], rendezvous.timedelta(milliseconds=20))
    waiting = threading.Thread(target=lambda: second.wait(["b"]))
    waiting.start()
    first.set("b", b"x" * 200_000)
    waiting.join(WAIT_SECONDS)
    assert not waiting.is_alive() and second.get("b") == b"x" * 200_000
    assert first.compare_set("v", "", "yes") == b"yes" == second.compare_set("v", "", "no")
    assert first.delete_key("a") and not second.check(["a"])
    other = member(store, generation=8)
    assert not other.check(["b"])


@pytest.mark.parametrize(
    "secret",
    [b"", os.urandom(32), group_secret(KEY, group_of(6)), group_secret(b"", "7")],
    ids=["none", "guessed", "of another generation", "of no key"],
)
def test_without_the_generations_secret_nobody_is_heard(store: RendezvousStore, secret: bytes) -> None:
    inside = member(store)
    inside.set("a", b"1")
    with pytest.raises(RendezvousError, match="another secret"):
        member(store, secret=secret)
    assert inside.get("a") == b"1"


def test_a_false_store_is_not_believed() -> None:
    """Whoever took the first member's port cannot make a member speak."""
    false = RendezvousStore("127.0.0.1", os.urandom(32))
    with pytest.raises(RendezvousError):
        member(false)
    false.close()


def test_what_strangers_send_ends_their_connection_and_nothing_else(
    store: RendezvousStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "STRANGERS_MAX", 8)
    monkeypatch.setattr(rendezvous, "STRANGER_SECONDS", 600.0)
    greeting = b"elastane rendezvous 1\n" + bytes(32) + b"7"
    framed = struct.pack(">I", len(greeting)) + greeting
    rubbish = [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 2**31),
        struct.pack(">I", 0),
        bytes([1, 2, 3]) * 1000,  # as torch's TCPStore is asked
        framed + struct.pack(">I", 32) + bytes(32),
        struct.pack(">I", 60) + greeting[:-1] + b"\xff" * 6 + struct.pack(">I", 32) + bytes(32),
    ]
    inside = member(store)
    for sent in rubbish:
        with dial(store) as stranger:
            stranger.sendall(sent)
            received = stranger.recv(100)
            while received:
                try:
                    received = stranger.recv(100)
                except ConnectionResetError:
                    break
    # Many that say nothing: the oldest are ended, members are heard all the same.
    standing = [dial(store) for _ in range(20)]
    for number in range(3):
        late = member(store)
        late.set(f"k{number}", b"v")
        assert inside.get(f"k{number}") == b"v"
    assert standing[0].recv(1) == b""
    for one in standing:
        one.close()


def test_what_is_said_in_a_members_name_ends_the_connection(store: RendezvousStore) -> None:
    """A request that was not made with the codes of the connection, in the middle of it."""
    one, other = member(store), member(store)
    other.set("a", b"1")
    body = rendezvous._packed(1, b"a", b"2")
    one._connection.sendall(rendezvous._framed(body + bytes(32)))
    assert one._connection.recv(1) == b""
    assert other.get("a") == b"1"


@pytest.mark.parametrize("messages", ["sockets", "gloo"])
def test_a_ring_meets_by_its_secret_listens_at_its_own_address_alone_and_a_stranger_breaks_nothing(
    store: RendezvousStore, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """A stranger also tries the ports of the ring's members, while these are open."""
    before = _listening()
    opened, connect = [], cpu_group.SocketMesh.connect

    def watched(mesh):
        opened.extend(_listening() - before)
        return connect(mesh)

    monkeypatch.setattr(cpu_group.SocketMesh, "connect", watched)
    rings = in_threads(3, lambda rank: _form(store, rank, 3, group_secret(KEY, group_of(7)), messages))
    opened += _listening() - before
    assert opened
    assert all(address == "0100007F" for address, _ in opened), opened  # 127.0.0.1, as the store's
    # The members' own ports are closed when the ring stands; gloo's stay open.
    assert bool(_listening() - before) == (messages == "gloo")
    for _, port in _listening() - before:
        with socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) as stranger:
            stranger.sendall(bytes(4096))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), WAIT_SECONDS)
    with pytest.raises(RingBroken, match="secret"):
        _form(store, 1, 3, os.urandom(32))
    message, got = torch.arange(10.0), torch.zeros(10)
    received = rings[1].recv(got, 0, 5)
    rings[0].send(message, 1, 5).wait()
    received.wait()
    assert torch.equal(message, got)
    for ring in rings:
        ring.close()


def _form(
    store: RendezvousStore, rank: int, size: int, secret: bytes, messages: Messages = "sockets"
) -> RingTransport:
    return RingTransport.form(
        store_address=store.address,
        prefix=group_of(7),
        secret=secret,
        rank=rank,
        size=size,
        cancel=threading.Event(),
        timeout_seconds=WAIT_SECONDS,
        messages=messages,
    )


def _listening() -> set[tuple[str, int]]:
    """Addresses, as the kernel writes them, and ports at which this process listens."""
    own = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            own.add(str(link.readlink()))
        except FileNotFoundError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                address, _, port = fields[1].partition(":")
                found.add((address, int(port, 16)))
    return found
