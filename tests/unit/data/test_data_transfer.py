"""Batches pass between processes whole, whatever they consist of."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elastane.data import transfer
from unit.data.loader_runs import assert_same


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = transfer.pair()
    with left, right:
        yield left, right


def passed(ends: tuple[socket.socket, socket.socket], payload: Any) -> Any:
    assert transfer.send(ends[0], transfer.pack(1, 2, 3, payload), wait=True)
    message = transfer.receive(ends[1], wait=True)
    assert message is not None and (message.session, message.rank, message.batch) == (1, 2, 3)
    return message.load()


PAYLOADS: dict[str, Any] = {
    "small": {"x": torch.arange(5), "text": "é", "none": None},
    "empty tensor": [torch.empty(0), torch.empty(0, 3)],
    "scalar and bool": (torch.tensor(1.5), torch.tensor([True, False])),
    "bfloat16": torch.randn(7).to(torch.bfloat16),
    "big": [torch.randn(100_000), torch.arange(50_000)],
    "just under and over the limit": [
        torch.zeros(transfer.SHARE_BYTES_MIN - 1, dtype=torch.uint8),
        torch.ones(transfer.SHARE_BYTES_MIN, dtype=torch.uint8),
    ],
    "strided": [torch.randn(300, 400).t(), torch.randn(4, 3, 64, 64).to(memory_format=torch.channels_last)],
    "many small": [torch.full((3,), i) for i in range(3000)],
    "more big ones than descriptors": [torch.full((20_000,), i) for i in range(70)],
    "numpy": np.arange(200_000, dtype=np.int16),
    "body over the limit": b"z" * 1_000_000,
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_comes_out_as_it_went_in(ends: tuple[socket.socket, socket.socket], payload: Any) -> None:
    out = passed(ends, payload)
    assert_same(out, payload)
    if isinstance(payload, list):
        assert [tensor.stride() for tensor in out] == [tensor.stride() for tensor in payload]


@pytest.mark.parametrize("size", [10, 100_000])
def test_views_of_one_storage_stay_views(ends: tuple[socket.socket, socket.socket], size: int) -> None:
    whole = torch.zeros(size)
    out_whole, out_view = passed(ends, (whole, whole[3:]))
    out_whole[3] = 7
    assert out_view[0] == 7


def test_no_descriptor_is_left_open(ends: tuple[socket.socket, socket.socket]) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    payload = lambda: [torch.randn(100_000) for _ in range(5)] + [b"z" * 100_000]  # noqa: E731
    passed(ends, payload())
    before = count()
    passed(ends, payload())
    transfer.send(ends[0], transfer.pack(1, 2, 3, payload()), wait=True)
    message = transfer.receive(ends[1], wait=True)
    assert message is not None and count() > before
    message.close()
    assert count() == before


def test_end_of_the_connection_is_none_and_no_data_is_blocking(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    with pytest.raises(BlockingIOError):
        transfer.receive(ends[1], wait=False)
    ends[0].close()
    assert transfer.receive(ends[1], wait=True) is None


def test_a_full_connection_is_told_and_nothing_is_lost(ends: tuple[socket.socket, socket.socket]) -> None:
    sent = 0
    while transfer.send(ends[0], transfer.pack(1, 2, sent, b"z" * 40_000), wait=False):
        sent += 1
    received = [transfer.receive(ends[1], wait=True) for _ in range(sent)]
    assert [message.batch for message in received if message] == list(range(sent))
    assert os.getpid()  # still here: no SIGPIPE, no SIGIO
