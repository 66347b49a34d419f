"""Message size limit on the client side: of the workers' sessions and of every client."""

from __future__ import annotations

import os
from typing import Final

from elastane_common.errors import RefusedError

VARIABLE: Final = "ELASTANE_CLIENT_MESSAGE_BYTES_MAX"
DEFAULT: Final = 256 * 1024 * 1024
_LEAST: Final = 65536


def message_bytes_max() -> int:
    """Return the limit in bytes from the environment; default: the master's `answer_bytes_max`.

    Raises RefusedError.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return DEFAULT
    if not (text.isascii() and text.isdigit() and _LEAST <= int(text) < 2**31):
        raise RefusedError(
            f"{VARIABLE} is {text!r}",
            hint=f"set a number of bytes from {_LEAST} to {2**31 - 1}, or unset it",
        )
    return int(text)


def size_options() -> list[tuple[str, int]]:
    """Return the size options of a gRPC channel. Raises RefusedError."""
    size = message_bytes_max()
    return [("grpc.max_send_message_length", size), ("grpc.max_receive_message_length", size)]
