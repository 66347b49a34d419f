"""Group of a ring whose messages are in CPU memory: the members agree on its kind and build it.

    sockets   the members' own connections (`socket_group`); the default
    gloo      torch's, if any member's settings or release ask for it

Each member announces in the rendezvous store where it listens, or that it wants gloo. What all have announced
does not change, so all reach the same answer. A member of a release without sockets announces nothing, but
writes gloo's first key to the store at once; the others look for it when an announcement is late.

Beside it each announces whether it wants or can do TLS (`elastane_common.process_tls`); a member of a release
without it announces nothing. A ring whose members cannot all do it is not encrypted, and those who want it
say so.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Final, Literal, cast, get_args

import structlog
import torch
from torch._C._distributed_c10d import Store
from torch.distributed import DistStoreError

from elastane.collective import gloo
from elastane.collective.gloo import GlooGroup, gloo_group
from elastane.collective.own_address import own_address
from elastane.collective.rendezvous import listen
from elastane.collective.socket_group import SocketGroup
from elastane.collective.socket_mesh import Interrupt, SocketMesh, SocketMeshError
from elastane_common.process_tls import Offer, OwnTls, is_encrypted, own_tls

#: Transport of the messages.
Messages = Literal["sockets", "gloo"]
CpuGroup = SocketGroup | GlooGroup

_log = structlog.get_logger(__name__)

_GLOO: Final = "gloo"
_GLOO_HINT: Final = "it has no encryption: unset ELASTANE_RING_MESSAGES=gloo, update older workers"
#: Wait for an announcement before members check whether one of an older release is among them.
_PATIENCE: Final = timedelta(seconds=1)
_WARM_UP_SECONDS: Final = 30.0
#: Reasons why a ring was not encrypted that were reported in this process.
_reported: set[str] = set()


def cpu_group(
    store: Store,
    store_place: tuple[str, int],
    rank: int,
    size: int,
    *,
    group: str,
    secret: bytes,
    timeout_seconds: float,
    messages: Messages,
    tls: Offer = "off",
    interrupt: Interrupt,
) -> CpuGroup:
    """Build a group of all members that meet at `store`.

    store_place: host and port of the store. group, secret: name and secret of the group. messages: what this
    member wants. tls: what it announces about encryption. Raises RuntimeError or OSError, also once
    `interrupt` is set while connections open; RefusedError if this host cannot listen at its own address.
    """
    address = own_address(*store_place)
    listener = listen(address) if messages == "sockets" else None
    try:
        # First, so that it is there for whoever has seen the other announcement.
        store.set(_tls_key(rank), tls)
        if listener is not None:
            _announce(store, rank, f"{address} {listener.getsockname()[1]}")
        else:
            _announce(store, rank, _GLOO)
        addresses = _agree(store, rank, size, timeout_seconds)
        if listener is None or addresses is None:
            if tls == "wanted":
                report_unencrypted("torch's gloo carries the messages of a ring", _GLOO_HINT)
            return gloo_group(store, rank, size, timedelta(seconds=timeout_seconds), address)
        own = own_tls() if _agree_tls(store, rank, size, tls) else None
        mesh = SocketMesh(listener, addresses, rank, group.encode(), secret, timeout_seconds, interrupt, own)
        return SocketGroup(mesh.connect(), timeout_seconds)
    finally:
        if listener is not None:
            listener.close()


def report_unencrypted(why: str, hint: str) -> None:
    """Warn, once a process for each reason, that a ring which was to be encrypted is not."""
    if why not in _reported:
        _reported.add(why)
        _log.warning(
            f"the connections between workers are not encrypted, although that to the master is: {why}",
            hint=hint,
        )


def warm_up(tls: OwnTls | None = None) -> None:
    """Pay the one-time costs of a process's first group, with one of two members in this process.

    Called once, before the worker joins a ring, so that survivors of a change do not wait for a joining
    worker. tls: if its ring will be encrypted.
    """
    listeners = [listen("127.0.0.1") for _ in range(2)]
    places = [listener.getsockname()[:2] for listener in listeners]
    pair: dict[int, SocketGroup] = {}

    def build(rank: int) -> None:
        peer = 1 - rank
        mesh = SocketMesh(
            listeners[rank], {peer: places[peer]}, rank, b"warm-up", b"", _WARM_UP_SECONDS, Interrupt(), tls
        )
        pair[rank] = SocketGroup(mesh.connect(), _WARM_UP_SECONDS)

    thread = threading.Thread(target=build, args=(1,), daemon=True)
    thread.start()
    build(0)
    thread.join()
    received = pair[1].recv(torch.zeros(1), 0, 0)
    pair[0].send(torch.zeros(1), 1, 0).wait()
    received.wait()
    for group in pair.values():
        group.close()


def _announce(store: Store, rank: int, words: str) -> None:
    store.set(_key(rank), words)


def _agree(store: Store, rank: int, size: int, timeout_seconds: float) -> dict[int, tuple[str, int]] | None:
    """Return where the other members listen; None if the group is to be gloo's. Raises RuntimeError."""
    others = [peer for peer in range(size) if peer != rank]
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            store.wait([_key(peer) for peer in others], _PATIENCE)
            break
        except DistStoreError:
            missing = [peer for peer in others if not store.check([_key(peer)])]
            if any(store.check([gloo.announcement_key(peer)]) for peer in missing):
                return None
            if time.monotonic() > deadline:
                raise SocketMeshError(
                    f"Timed out: members {missing} did not come within {timeout_seconds:g} s"
                ) from None
    found = {peer: bytes(store.get(_key(peer))).decode() for peer in others}
    if _GLOO in found.values():
        return None
    places = {peer: words.rpartition(" ") for peer, words in found.items()}
    return {peer: (host, int(port)) for peer, (host, _, port) in places.items()}


def _agree_tls(store: Store, rank: int, size: int, own: Offer) -> bool:
    """Return whether the members encrypt, once all have announced where they listen. Raises RuntimeError."""
    offers = {peer: _offer(store, peer) for peer in range(size) if peer != rank}
    encrypted = is_encrypted([own, *offers.values()])
    if own == "wanted" and not encrypted:
        released = [peer for peer, offer in offers.items() if offer is None]
        off = [peer for peer, offer in offers.items() if offer == "off"]
        if released:
            report_unencrypted("a worker of an older release is in the ring", f"update members {released}")
        if off:
            report_unencrypted("a worker of the ring has TLS turned off, or lacks it", f"members {off}")
    return encrypted


def _offer(store: Store, peer: int) -> Offer | None:
    if not store.check([_tls_key(peer)]):
        return None
    offer = bytes(store.get(_tls_key(peer))).decode()
    if offer not in get_args(Offer):
        raise SocketMeshError(f"member {peer} announces {offer!r} about TLS: unknown to this release")
    return cast(Offer, offer)


def _tls_key(rank: int) -> str:
    return f"tls/{rank}"


def _key(rank: int) -> str:
    return f"sockets/{rank}"
