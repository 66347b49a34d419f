"""Decodes a terminal's input bytes into names of keys. Pure."""

from __future__ import annotations

from typing import Final

_SEQUENCES: Final = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left",
    b"\x1b[5~": "page_up", b"\x1b[6~": "page_down",
    b"\x1b[H": "home", b"\x1b[F": "end", b"\x1bOH": "home", b"\x1bOF": "end",
    b"\x1b[1~": "home", b"\x1b[4~": "end", b"\x1b[Z": "back_tab",
}  # fmt: skip
_LONGEST: Final = max(map(len, _SEQUENCES))
_PLAIN: Final = {
    b"\r": "enter", b"\n": "enter", b"\t": "tab", b"\x7f": "backspace", b"\x08": "backspace", b" ": "space"
}  # fmt: skip
_VI: Final = {"j": "down", "k": "up", "h": "left", "l": "right", "g": "home", "G": "end"}


def decode(data: bytes) -> list[str]:
    """Decode the bytes of one read into keys: names, or the character itself; a lone escape is "escape".

    Unknown sequences, such as those of a mouse, are skipped.
    """
    keys = []
    while data:
        size = next((n for n in range(_LONGEST, 1, -1) if data[:n] in _SEQUENCES), 0)
        if size:
            keys.append(_SEQUENCES[data[:size]])
        elif data[:2] in (b"\x1b[", b"\x1bO"):
            # An unknown control sequence: skip it up to its final byte (ECMA-48: 0x40 to 0x7E).
            size = 2
            while size < len(data) and not 0x40 <= data[size] <= 0x7E:
                size += 1
            size += 1
        elif data[:1] == b"\x1b":
            size = 1
            keys.append("escape")
        elif data[:1] in _PLAIN:
            size = 1
            keys.append(_PLAIN[data[:1]])
        else:
            # The lead byte of a UTF-8 character gives its length.
            size = 1 if data[0] < 0x80 else 2 if data[0] < 0xE0 else 3 if data[0] < 0xF0 else 4
            text = data[:size].decode("utf-8", "ignore")
            if text.isprintable() and text:
                keys.append(_VI.get(text, text))
        data = data[size:]
    return keys
