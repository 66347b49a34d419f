"""Messages between `elastane ps replay` and the script's process."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from elastane_common.errors import RefusedError

_VARIABLE: Final = "ELASTANE_REPLAY"
#: Files in the request's folder.
RESULT: Final = "result.json"
PROGRESS: Final = "progress"


class ReplayRequest(msgspec.Struct, frozen=True):
    """url: of the run's folder, with the journal. ends: below it, the snapshots to compare with. folder: for
    the result, of this machine."""

    url: str
    ends: str
    folder: str

    def environment(self) -> dict[str, str]:
        """Return the variable for the script's process."""
        return {_VARIABLE: msgspec.json.encode(self).decode()}

    @classmethod
    def read(cls) -> ReplayRequest:
        """Inverse of `environment`. Raises RefusedError."""
        try:
            return _decoder.decode(os.environ.get(_VARIABLE, ""))
        except msgspec.MsgspecError as error:
            raise RefusedError(
                f"bad environment: {_VARIABLE}: {error}", hint="it is set by `elastane ps replay`"
            ) from error


_decoder: Final = msgspec.json.Decoder(ReplayRequest)
