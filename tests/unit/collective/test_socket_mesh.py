"""Connections that open with a challenge: strangers, other generations, members that do not come.

Without and with TLS; with it also somebody who stands between two members.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
import threading
import time
from contextlib import suppress

import pytest
import torch

from between import Between
from elastane.collective import own_address, socket_mesh
from elastane.collective.rendezvous import listen
from elastane.collective.socket_group import SocketGroup
from elastane.collective.socket_mesh import (
    GREETING,
    STRANGERS_MAX,
    Interrupt,
    SocketMesh,
    SocketMeshError,
)
from elastane_common import process_tls
from elastane_common.challenge import NONCE_BYTES, PROOF_BYTES, CallerChallenge
from elastane_common.errors import RefusedError
from elastane_common.process_tls import OwnTls, digest_of_peer, is_encrypted, offer_of, own_tls

WAIT_SECONDS = 30.0
SECRET = b"s" * 32


class Member(threading.Thread):
    """One member that forms the mesh; `result` is what it got or raised."""

    def __init__(
        self, listener, places, rank, secret=SECRET, group=b"7", timeout_seconds=WAIT_SECONDS, tls=None
    ):
        super().__init__(daemon=True)
        others = {peer: place for peer, place in places.items() if peer != rank}
        self.interrupt = Interrupt()
        self._mesh = SocketMesh(listener, others, rank, group, secret, timeout_seconds, self.interrupt, tls)
        self.result = None
        self.start()

    def run(self):
        try:
            self.result = self._mesh.connect()
        except SocketMeshError as error:
            self.result = error

    def ended(self):
        self.join(WAIT_SECONDS)
        assert not self.is_alive(), "still forming"
        return self.result


def _listeners(count, host="127.0.0.1"):
    listeners = [listen(host) for _ in range(count)]
    return listeners, {rank: one.getsockname()[:2] for rank, one in enumerate(listeners)}


def _dial(place):
    connection = socket.create_connection(place, WAIT_SECONDS)
    connection.settimeout(WAIT_SECONDS)
    return connection


def _is_closed(connection):
    try:
        while connection.recv(1024):
            pass
    except ConnectionResetError:
        pass
    return True


def _close(members):
    for member in members:
        for connection in member.result.values():
            connection.close()


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def tls(request):
    return own_tls() if request.param else None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_all_members_connect_with_all_others_and_the_ports_close(host, tls):
    listeners, places = _listeners(4, host)
    members = [Member(listener, places, rank, tls=tls) for rank, listener in enumerate(listeners)]
    links = [member.ended() for member in members]
    assert [sorted(found) for found in links] == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
    groups = [SocketGroup(found, WAIT_SECONDS) for found in links]
    for a in range(4):
        for b in range(4):
            if a != b:
                got = torch.zeros(1)
                groups[a].send(torch.full((1,), float(a)), b, 1).wait()
                groups[b].recv(got, a, 1).wait()
                assert float(got) == a
    for place in places.values():
        with pytest.raises(ConnectionRefusedError):
            _dial(place)
    for group in groups:
        group.close()


def test_strangers_get_nothing_and_disturb_nobody(tls):
    listeners, places = _listeners(2)
    first = Member(listeners[0], places, 0, tls=tls)
    silent = _dial(places[0])
    rude = []
    for sent in (b"GET / HTTP/1.1\r\n\r\n" * 40, bytes(1 << 20), GREETING + bytes(NONCE_BYTES) + b"\xff" * 8):
        rude.append(_dial(places[0]))
        with suppress(ConnectionResetError, BrokenPipeError):
            rude[-1].sendall(sent)
    assert all(_is_closed(connection) for connection in rude)
    # One that speaks the protocol but does not know the secret gets a nonce, and no proof.
    liar = _dial(places[0])
    if tls is not None:
        # Nor does a certificate of its own help.
        liar = _another_process_s().caller.wrap_socket(liar)
    liar.sendall(GREETING + bytes(NONCE_BYTES) + struct.pack("<II", 1, 0))
    assert len(liar.recv(NONCE_BYTES)) == NONCE_BYTES
    liar.sendall(bytes(PROOF_BYTES))
    with suppress(ConnectionResetError):
        assert liar.recv(1) == b""
    second = Member(listeners[1], places, 1, tls=tls)
    assert sorted(first.ended()) == [1]
    assert sorted(second.ended()) == [0]
    assert _is_closed(silent)
    _close([first, second])


def test_a_stranger_that_sends_byte_by_byte_is_ended_in_time(monkeypatch, tls):
    monkeypatch.setattr(socket_mesh, "STRANGER_SECONDS", 0.3)
    listeners, places = _listeners(2)
    first = Member(listeners[0], places, 0, tls=tls)
    stranger = _dial(places[0])
    began = time.monotonic()
    # The beginning of a challenge or of a handshake, of which nothing is wrong.
    for byte in GREETING if tls is None else b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03":
        with suppress(ConnectionResetError, BrokenPipeError):
            stranger.sendall(bytes([byte]))
        time.sleep(0.01)
    assert _is_closed(stranger)
    assert time.monotonic() - began >= 0.3
    second = Member(listeners[1], places, 1, tls=tls)
    assert [sorted(member.ended()) for member in (first, second)] == [[1], [0]]
    _close([first, second])


def test_many_strangers_are_bounded_and_a_member_still_gets_in(monkeypatch, tls):
    monkeypatch.setattr(socket_mesh, "STRANGER_SECONDS", 10 * WAIT_SECONDS)
    listeners, places = _listeners(2)
    first = Member(listeners[0], places, 0, tls=tls)
    strangers = [_dial(places[0]) for _ in range(STRANGERS_MAX + 20)]
    assert _is_closed(strangers[0])
    second = Member(listeners[1], places, 1, tls=tls)
    assert sorted(first.ended()) == [1]
    assert sorted(second.ended()) == [0]
    for stranger in strangers:
        stranger.close()
    _close([first, second])


@pytest.mark.parametrize(
    ("secret", "group"),
    [(b"t" * 32, b"7"), (SECRET, b"6"), (b"", b"7")],
    ids=["secret", "generation", "none"],
)
def test_a_member_of_another_generation_is_not_let_in(secret, group, tls):
    listeners, places = _listeners(2)
    first = Member(listeners[0], places, 0, tls=tls)
    old_listeners, _ = _listeners(1)
    old = Member(old_listeners[0], {0: places[0], 1: places[1]}, 1, secret=secret, group=group, tls=tls)
    assert "member 0 cannot be reached" in str(old.ended())
    second = Member(listeners[1], places, 1, tls=tls)
    assert sorted(first.ended()) == [1]
    assert sorted(second.ended()) == [0]
    _close([first, second])


@pytest.mark.parametrize("subject", [(1, 1), (0, 0), (3, 0), (2, 1), (2**32 - 1, 0)])
def test_a_caller_that_nobody_awaits_is_ended_before_it_gets_a_nonce(subject):
    listeners, places = _listeners(3)
    first = Member(listeners[0], places, 0)
    caller = _dial(places[0])
    challenge = CallerChallenge(GREETING, SECRET, struct.pack("<II", *subject), b"7")
    caller.sendall(challenge.opening)
    assert caller.recv(1) == b""
    rest = [Member(listeners[rank], places, rank) for rank in (1, 2)]
    assert [sorted(member.ended()) for member in (first, *rest)] == [[1, 2], [0, 2], [0, 1]]
    _close([first, *rest])


def test_a_second_connection_of_a_member_is_refused():
    listeners, places = _listeners(3)
    first = Member(listeners[0], places, 0)
    again = []
    for _ in range(2):
        caller = _dial(places[0])
        challenge = CallerChallenge(GREETING, SECRET, struct.pack("<II", 1, 0), b"7")
        caller.sendall(challenge.opening)
        again.append((caller, challenge))
    # Both have begun before either is through.
    nonces = [caller.recv(NONCE_BYTES, socket.MSG_WAITALL) for caller, _ in again]
    proofs = []
    for (caller, challenge), nonce in zip(again, nonces, strict=True):
        caller.sendall(challenge.hear(nonce))
        proofs.append(caller.recv(PROOF_BYTES, socket.MSG_WAITALL))
    assert [len(proof) for proof in proofs] == [PROOF_BYTES, 0]
    first.interrupt.set()
    first.ended()
    for connection in (*listeners, *(caller for caller, _ in again)):
        connection.close()


def test_an_impostor_at_a_members_address_is_found_out():
    listeners, places = _listeners(2)
    caller = Member(listeners[1], places, 1)
    connection, _ = listeners[0].accept()
    connection.recv(len(GREETING) + NONCE_BYTES + 8, socket.MSG_WAITALL)
    connection.sendall(bytes(NONCE_BYTES))
    connection.recv(PROOF_BYTES, socket.MSG_WAITALL)
    connection.sendall(bytes(PROOF_BYTES))
    assert "does not know the secret" in str(caller.ended())
    connection.close()
    listeners[0].close()


def _another_process_s() -> OwnTls:
    """What `own_tls` returns in another process."""
    return process_tls._made.__wrapped__(0)


def test_who_listens_in_hears_nothing_with_tls_and_everything_without(tls):
    listeners, places = _listeners(2)
    between = Between(places[0])
    first = Member(listeners[0], places, 0, tls=tls)
    second = Member(listeners[1], {**places, 0: between.place}, 1, tls=tls)
    groups = [SocketGroup(member.ended(), WAIT_SECONDS) for member in (first, second)]
    patterns = [torch.randn(50_000) for _ in range(2)]
    got = [torch.zeros(50_000) for _ in range(2)]
    receives = [groups[rank].recv(got[rank], 1 - rank, 1) for rank in range(2)]
    for rank in range(2):
        groups[rank].send(patterns[rank], 1 - rank, 1)
    waiting = threading.Thread(target=receives[1].wait)
    waiting.start()
    receives[0].wait()
    waiting.join(WAIT_SECONDS)
    assert torch.equal(got[0], patterns[1]) and torch.equal(got[1], patterns[0])
    assert len(between.heard) > 2 * 200_000
    for pattern in patterns:
        bytes_of_it = pattern.numpy().tobytes()
        seen = [bytes_of_it[at : at + 16] in between.heard for at in range(0, len(bytes_of_it), 10_000)]
        assert any(seen) == all(seen) == (tls is None)
    assert (GREETING in between.heard) == (tls is None)
    for group in groups:
        group.close()


def test_who_stands_between_two_members_is_found_out_although_it_passes_on_their_proofs():
    own, other = own_tls(), _another_process_s()
    listeners, places = _listeners(2)
    first = Member(listeners[0], places, 0, tls=own)
    between = Between(places[0], hosts=other.host, calls=other.caller)
    deceived = Member(listeners[1], {**places, 0: between.place}, 1, tls=own)
    assert "member 0 cannot be reached" in str(deceived.ended())
    assert GREETING in between.heard  # it came as far as the challenge
    again, _ = _listeners(1)
    second = Member(again[0], places, 1, tls=own)
    assert [sorted(member.ended()) for member in (first, second)] == [[1], [0]]
    _close([first, second])


@pytest.mark.parametrize("encrypted", [0, 1])
def test_a_member_without_tls_and_one_with_it_do_not_meet(encrypted):
    listeners, places = _listeners(2)
    members = [
        Member(listeners[rank], places, rank, timeout_seconds=1, tls=own_tls() if rank == encrypted else None)
        for rank in range(2)
    ]
    assert all(isinstance(member.ended(), SocketMeshError) for member in members)


def test_each_process_has_a_key_of_its_own_and_an_older_version_of_tls_is_refused():
    own, other = own_tls(), _another_process_s()
    assert own is own_tls()
    assert own.digest != other.digest
    listener = listen("127.0.0.1")
    first = Member(listener, {0: None, 1: None}, 0, tls=own)
    place = listener.getsockname()[:2]
    connection = other.caller.wrap_socket(_dial(place))
    assert digest_of_peer(connection) == own.digest
    assert connection.version() == "TLSv1.3"
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode, old.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        old.wrap_socket(_dial(place))
    connection.close()
    first.interrupt.set()
    first.ended()


def test_a_forked_process_makes_another_key():
    own = own_tls()
    child = os.fork()
    if child == 0:
        os._exit(0 if own_tls().digest != own.digest else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("offers", "encrypted"),
    [
        (["wanted", "wanted"], True),
        (["possible", "wanted", "possible"], True),
        (["possible", "possible"], False),
        (["wanted", "off"], False),
        (["wanted", None, "wanted"], False),
        ([None, "off"], False),
    ],
)
def test_a_ring_encrypts_if_one_wants_it_and_all_can(offers, encrypted):
    assert is_encrypted(offers) is is_encrypted(reversed(offers)) is encrypted


def test_what_a_worker_offers(monkeypatch):
    assert offer_of(True, True) == "wanted"
    assert offer_of(True, False) == "possible"
    assert offer_of(False, True) == offer_of(False, False) == "off"
    monkeypatch.setattr(process_tls.importlib.util, "find_spec", lambda name: None)
    assert offer_of(True, False) == offer_of(False, True) == "off"
    with pytest.raises(RefusedError, match="cryptography is missing") as refused:
        offer_of(True, True)
    assert "ELASTANE_RING_TLS=0" in refused.value.hint


def test_a_member_that_does_not_come_is_named(tls):
    listeners, places = _listeners(3)
    members = [Member(listeners[rank], places, rank, timeout_seconds=0.5, tls=tls) for rank in (0, 1)]
    for rank, member in enumerate(members):
        assert str(member.ended()) == "Timed out: members [2] did not connect within 0.5 s", rank
    listeners[2].close()


def test_a_member_that_is_gone_is_named(tls):
    listeners, places = _listeners(2)
    listeners[0].close()
    host, port = places[0]
    said = str(Member(listeners[1], places, 1, tls=tls).ended())
    assert said.startswith(f"member 0 cannot be reached at {host}:{port}")


def test_forming_can_be_ended_from_outside():
    listeners, places = _listeners(2)
    member = Member(listeners[0], places, 0)
    member.interrupt.set()
    member.interrupt.set()
    assert "given up" in str(member.ended())


def test_the_interface_in_the_variable_gives_the_address(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert own_address.own_address("192.0.2.1", 1) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth7")
    assert own_address.own_address("192.0.2.1", 1) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    with pytest.raises(OSError, match="no-such-interface"):
        own_address.own_address("192.0.2.1", 1)


def test_the_route_gives_the_address(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert own_address.own_address("127.0.0.1", 1) == "127.0.0.1"
    assert own_address.own_address("::1", 1) == "::1"


def test_no_descriptors_left_drop_strangers_and_not_the_loop(monkeypatch):
    """As many strangers as a process has descriptors: `accept` fails, the oldest is ended, members get in."""
    listeners, places = _listeners(2)
    accepted = socket.socket.accept
    failures = iter([OSError(errno.EMFILE, "Too many open files")])

    def failing(self):
        if self is listeners[0] and len(strangers) == 2 and (failure := next(failures, None)):
            raise failure
        return accepted(self)

    strangers = []
    monkeypatch.setattr(socket.socket, "accept", failing)
    first = Member(listeners[0], places, 0)
    strangers.append(_dial(places[0]))
    strangers.append(_dial(places[0]))
    assert _is_closed(strangers[0])
    second = Member(listeners[1], places, 1)
    assert sorted(first.ended()) == [1]
    assert sorted(second.ended()) == [0]
    _close([first, second])
