"""Hand-over by unit: at a change of plan every member sends units that others lack, and receives its own.

    1. `unit_transfers` determines the transfers; in each transfer all donors send a stripe each
    2. all headers are posted, then waited for; so are the structures
    3. rounds: each member posts the next piece of every transfer it takes part in; a few rounds are in flight
    4. checksums; received state is in staging memory, complete and checked

A member may be donor and receiver at once. It posts its part of the next rounds, in both directions, before
it waits for a round, so there is no deadlock: the member furthest behind can always continue.

The messages of each transfer are those of `handover`. Messages between two members with the same tag must
arrive in the order of sending, as with gloo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from elastane.state.handover import PIECE_BYTES, PIECES_IN_FLIGHT, StateReceiver, StripeSender, Transport
from elastane.state.unit_state import Staged, UnitState
from elastane.state.unit_transfers import Transfer

_CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class HandedOver:
    """Result of a member's hand-over. staged: received state, not yet in place. Sizes in bytes."""

    staged: Staged
    sent_bytes: int
    received_bytes: int


def hand_over(
    transport: Transport,
    state: UnitState,
    transfers: Sequence[Transfer],
    me: int,
    *,
    tag_base: int,
    device: torch.device = _CPU,
    piece_bytes: int = PIECE_BYTES,
) -> HandedOver:
    """Send and receive this member's part of all transfers; called by every member, between steps.

    transfers: from `unit_transfers.transfers`, equal in all members. me: index of this member. Other
    arguments as for `send_state`; `handover.TAGS` tags are used. The live state is not changed, and the
    exported state must not change meanwhile; the result is for `UnitState.adopt`. Raises HandoverError;
    errors of the transport pass through.
    """
    senders = [
        StripeSender(
            transport,
            state.export(transfer.units, common=transfer.common),
            donor_index=transfer.donors.index(me),
            donors=len(transfer.donors),
            receivers=transfer.receivers,
            tag_base=tag_base,
            device=device,
            piece_bytes=piece_bytes,
        )
        for transfer in transfers
        if me in transfer.donors
    ]
    receivers = [
        StateReceiver(transport, transfer.donors, tag_base, device)
        for transfer in transfers
        if me in transfer.receivers
    ]
    for sender in senders:
        sender.announce()
    for receiver in receivers:
        receiver.expect_structure()
    for receiver in receivers:
        receiver.expect_pieces()
    # Senders post the same messages as the receiver before they wait for any of them.
    for _ in range(PIECES_IN_FLIGHT):
        for sender in senders:
            sender.post()
    while any(sender.has_more for sender in senders) or any(receiver.has_more for receiver in receivers):
        for receiver in receivers:
            receiver.take()
            receiver.post()
        for sender in senders:
            sender.post()
    for sender in senders:
        sender.finish()
    for receiver in receivers:
        receiver.expect_checksums()
    exported = [receiver.result() for receiver in receivers]
    for sender in senders:
        sender.wait()
    return HandedOver(
        Staged.of(*exported),
        sum(s.stripe_bytes * len(s.receivers) for s in senders),
        sum(r.total_bytes for r in receivers),
    )
