"""Decodes a terminal's input bytes into keys and what the mouse did. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

_SEQUENCES: Final = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left",
    b"\x1b[5~": "page_up", b"\x1b[6~": "page_down",
    b"\x1b[H": "home", b"\x1b[F": "end", b"\x1bOH": "home", b"\x1bOF": "end",
    b"\x1b[1~": "home", b"\x1b[4~": "end", b"\x1b[Z": "back_tab",
}  # fmt: skip
_PLAIN: Final = {
    b"\r": "enter", b"\n": "enter", b"\t": "tab", b"\x7f": "backspace", b"\x08": "backspace", b" ": "space"
}  # fmt: skip
#: ECMA-48: parameters and intermediates, then a final byte; SS3 has the final byte only.
_CONTROL: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
_BEGUN: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O)?")
_MOUSE: Final = re.compile(rb"\x1b\[<(\d{1,4});(\d{1,5});(\d{1,5})M")
_BEGUN_BYTES_MAX: Final = 64
_MODIFIERS: Final = 4 | 8 | 16
_ACTS: Final[dict[int, Literal["click", "wheel_up", "wheel_down"]]] = {
    0: "click", 64: "wheel_up", 65: "wheel_down"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mouse:
    """A press of the left button, or a turn of the wheel. column, line: of the screen, from 0."""

    act: Literal["click", "wheel_up", "wheel_down"]
    column: int
    line: int


Key = str | Mouse


def decode(data: bytes, *, whole: bool = True) -> tuple[list[Key], bytes]:
    """Decode input into keys: names, the character itself, or Mouse; also return what is not complete yet.

    whole: nothing more can be read at once, so an escape at the end is the key "escape". A control sequence
    that has begun waits for its end in any case: put the returned bytes before the next ones. Unknown
    sequences are skipped, and so are releases of a button and other buttons than the left one.
    """
    keys: list[Key] = []
    while data:
        if found := _CONTROL.match(data):
            size = found.end()
            if (key := _control(data[:size])) is not None:
                keys.append(key)
        elif (begun := _BEGUN.fullmatch(data)) and not (whole and data == b"\x1b"):
            # Longer than any terminal's: not the beginning of one.
            return keys, data if len(begun[0]) <= _BEGUN_BYTES_MAX else b""
        elif data[:1] == b"\x1b":
            size = 1
            keys.append("escape")
        elif data[:1] in _PLAIN:
            size = 1
            keys.append(_PLAIN[data[:1]])
        else:
            # The lead byte of a UTF-8 character gives its length.
            size = 1 if data[0] < 0xC0 else 2 if data[0] < 0xE0 else 3 if data[0] < 0xF0 else 4
            if size > len(data) and not whole:
                return keys, data
            text = data[:size].decode("utf-8", "ignore")
            if text.isprintable() and text:
                keys.append(text)
        data = data[size:]
    return keys, b""


def _control(sequence: bytes) -> Key | None:
    if sequence in _SEQUENCES:
        return _SEQUENCES[sequence]
    if not (mouse := _MOUSE.fullmatch(sequence)):
        return None
    act = _ACTS.get(int(mouse[1]) & ~_MODIFIERS)
    return Mouse(act, max(int(mouse[2]) - 1, 0), max(int(mouse[3]) - 1, 0)) if act is not None else None
