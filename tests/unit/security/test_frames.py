"""Calls are counted by the headers of frames, wherever the bytes are cut."""

from __future__ import annotations

import pytest

from elastane_master.security.frames import CONTINUATION, HEADERS, PREFACE, CallCounter

DATA, SETTINGS = 0x0, 0x4


def frame(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, 0]) + (1).to_bytes(4) + payload


def handed_on(counter: CallCounter, sent: bytes, size: int) -> int:
    """How much passes of what is sent in pieces of `size`."""
    passed = 0
    for at in range(0, len(sent), size):
        piece = memoryview(sent[at : at + size])
        allowed = counter.allowed(piece)
        passed += allowed
        if allowed < len(piece):
            break
    return passed


@pytest.mark.parametrize("size", [1, 2, 7, 9, 10, 33, 1000])
def test_bytes_up_to_the_call_too_many_pass(size: int) -> None:
    begun = PREFACE + frame(SETTINGS, b"") + frame(HEADERS, b"x" * 20) + frame(DATA, bytes([HEADERS] * 30))
    begun += frame(HEADERS, b"")
    sent = begun + frame(HEADERS, b"one too many") + frame(DATA, b"and more")
    passed = handed_on(CallCounter(2), sent, size)
    # A part of the header of the frame that is too many may have gone along: nothing follows from that.
    assert len(begun) <= passed < len(begun) + 9
    assert handed_on(CallCounter(3), sent, size) == len(sent)


@pytest.mark.parametrize("size", [1, 4, 9, 11, 1000])
def test_each_answer_makes_one_more(size: int) -> None:
    sent = PREFACE + (frame(HEADERS, b"call") + frame(DATA, b"body")) * 3
    counter, passed = CallCounter(1), 0
    for begun in (1, 2, 3):
        passed += handed_on(counter, sent[passed:], size)
        whole = len(PREFACE) + begun * len(sent[len(PREFACE) :]) // 3
        assert passed == len(sent) if begun == 3 else whole <= passed < whole + 9
        counter.answered()


def test_headers_that_go_on_in_another_frame_do_not_pass_whatever_was_answered() -> None:
    begun = PREFACE + frame(HEADERS, b"x" * 20)
    counter, sent = CallCounter(3), begun + frame(CONTINUATION, b"y" * 20)
    assert handed_on(counter, sent, 1000) == len(begun)
    counter.answered()
    assert handed_on(counter, sent[len(begun) :], 1000) == 0


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_what_is_no_http2_is_not_looked_into(size: int) -> None:
    hello = b"\x16\x03\x01" + frame(HEADERS, b"") * 20
    assert handed_on(CallCounter(0), hello, size) == len(hello)
    almost = PREFACE[:-1] + b"?" + frame(HEADERS, b"") * 20
    assert handed_on(CallCounter(0), almost, size) == len(almost)
