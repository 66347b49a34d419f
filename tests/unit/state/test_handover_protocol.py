"""The hand-over's messages, over a transport in memory: what is refused, and what is left alone."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.state.codec import Exported, decode, encode
from elastane.state.handover import PIECES_IN_FLIGHT, TAGS, HandoverError, receive_state, send_state

TAG_BASE = 1000


class BrokenError(Exception):
    """What the transport raises in these tests."""


class Done:
    def __init__(self, action: Callable[[], None] = lambda: None) -> None:
        self._action = action

    def wait(self) -> None:
        self._action()


class Mail:
    """Messages by (source, destination, tag), in order; `damage` may change or drop them by raising."""

    def __init__(self, damage: Callable[[int, int, torch.Tensor], torch.Tensor] | None = None) -> None:
        self.boxes: dict[tuple[int, int, int], queue.SimpleQueue[Any]] = defaultdict(queue.SimpleQueue)
        self.damage = damage or (lambda _src, _tag, tensor: tensor)
        self.tags: set[int] = set()
        self.posts: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
        self.lock = threading.Lock()

    def box(self, key: tuple[int, int, int]) -> queue.SimpleQueue[Any]:
        with self.lock:
            self.tags.add(key[2])
            return self.boxes[key]


class Place:
    """The transport of one ring member."""

    def __init__(self, mail: Mail, rank: int) -> None:
        self.mail, self.rank = mail, rank

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Done:
        self.mail.posts[(self.rank, peer)].append(("send", tag))
        self.mail.box((self.rank, peer, tag)).put(self.mail.damage(self.rank, tag - TAG_BASE, tensor.clone()))
        return Done()

    def recv(self, tensor: torch.Tensor, peer: int, tag: int) -> Done:
        self.mail.posts[(self.rank, peer)].append(("recv", tag))
        box = self.mail.box((peer, self.rank, tag))

        def deliver() -> None:
            message = box.get(timeout=20)
            if isinstance(message, Exception):
                raise message
            assert message.shape == tensor.shape and message.dtype == tensor.dtype
            tensor.copy_(message)

        return Done(deliver)


def hand_over(
    states: list[Exported], receivers: int, mail: Mail | None = None, piece_bytes: int = 128
) -> list[Exported]:
    """Members 0..D-1 are donors, D..D+R-1 receivers; returns what each receiver got."""
    mail = mail or Mail()
    donors, places = list(range(len(states))), list(range(len(states), len(states) + receivers))
    with ThreadPoolExecutor(len(donors) + receivers) as members:
        for index, exported in enumerate(states):
            sent = members.submit(
                send_state,
                Place(mail, index),
                exported,
                donor_index=index,
                donors=donors,
                receivers=places,
                tag_base=TAG_BASE,
                piece_bytes=piece_bytes,
            )
            sent.add_done_callback(lambda future: future.exception())
        received = [
            members.submit(receive_state, Place(mail, place), donors=donors, tag_base=TAG_BASE)
            for place in places
        ]
        return [future.result() for future in received]


def a_state(seed: int = 0, size: int = 1000) -> Exported:
    generator = torch.Generator().manual_seed(seed)
    big = torch.randn(size, generator=generator)
    return encode(
        {"big": big, "small": [torch.full((3,), float(i)) for i in range(5)], "tied": big, "lr": 0.1}
    )


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 500), st.sampled_from([64, 192, 4096]))
@settings(max_examples=40, deadline=None)
def test_every_receiver_gets_the_whole_state(
    donors: int, receivers: int, size: int, piece_bytes: int
) -> None:
    exported = a_state(size=size)
    for received in hand_over([exported] * donors, receivers, piece_bytes=piece_bytes):
        assert received.structure == exported.structure
        assert all(map(torch.equal, received.tensors, exported.tensors))
        state = decode(received)
        assert state["big"] is state["tied"] and state["lr"] == 0.1


def test_a_state_without_tensors() -> None:
    (received,) = hand_over([encode({"lr": 0.1})] * 2, 1)
    assert decode(received) == {"lr": 0.1}


def test_tags_stay_in_their_range_and_pairs_post_in_one_order() -> None:
    mail = Mail()
    hand_over([a_state(size=5000)] * 2, 2, mail)
    assert mail.tags <= set(range(TAG_BASE, TAG_BASE + TAGS)) and len(mail.tags) == TAGS
    for donor in (0, 1):
        for receiver in (2, 3):
            sent = [tag for _, tag in mail.posts[(donor, receiver)]]
            assert sent == [tag for _, tag in mail.posts[(receiver, donor)]] and len(sent) > PIECES_IN_FLIGHT


def test_each_donor_sends_its_part_only() -> None:
    mail = Mail()
    hand_over([a_state(size=64 * 40)] * 4, 1, mail)
    counts = [len(mail.posts[(donor, 4)]) for donor in range(4)]
    assert max(counts) - min(counts) <= 3


def flip_a_bit(src: int, tag: int, tensor: torch.Tensor) -> torch.Tensor:
    if src == 1 and tag == TAGS - 1:
        tensor[5] ^= 1
    return tensor


def test_a_damaged_stripe_is_refused_and_named() -> None:
    with pytest.raises(HandoverError, match="member 1 is damaged") as caught:
        hand_over([a_state(size=5000)] * 2, 1, Mail(flip_a_bit))
    assert caught.value.facts == {"donor": 1}


def test_donors_of_another_layout_are_refused() -> None:
    with pytest.raises(HandoverError, match="member 1 holds a different state"):
        hand_over([a_state(), a_state(size=1001)], 1)


def test_the_same_size_in_another_dtype_is_another_layout() -> None:
    first, second = encode([torch.zeros(4, dtype=torch.int32)]), encode([torch.zeros(4)])
    with pytest.raises(HandoverError, match="member 1 holds a different state"):
        hand_over([first, second], 1)


def test_members_that_disagree_on_the_donors_are_told() -> None:
    def disagree(_src: int, tag: int, tensor: torch.Tensor) -> torch.Tensor:
        if tag == 0:
            tensor[1] += 1
        return tensor

    with pytest.raises(HandoverError, match="is donor 0 of 2, expected donor 0 of 1"):
        hand_over([a_state()], 1, Mail(disagree))


def test_errors_of_the_transport_pass_through() -> None:
    pieces = 0

    def die(src: int, tag: int, tensor: torch.Tensor) -> Any:
        nonlocal pieces
        pieces += src == 1 and tag >= 3
        return BrokenError("the donor died") if pieces > 6 else tensor

    with pytest.raises(BrokenError):
        hand_over([a_state(size=5000)] * 2, 1, Mail(die))


def test_without_receivers_nothing_is_sent() -> None:
    mail = Mail()
    send_state(Place(mail, 0), a_state(), donor_index=0, donors=[0], receivers=[], tag_base=TAG_BASE)
    assert not mail.tags


@pytest.mark.parametrize("piece_bytes", [0, -64, 100])
def test_pieces_must_be_aligned(piece_bytes: int) -> None:
    with pytest.raises(ValueError, match="multiple of 64"):
        send_state(
            Place(Mail(), 0),
            a_state(),
            donor_index=0,
            donors=[0],
            receivers=[1],
            tag_base=TAG_BASE,
            piece_bytes=piece_bytes,
        )
