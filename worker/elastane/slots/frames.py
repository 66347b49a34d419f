"""Frames between workers and parameter servers, and among parameter servers.

    prefix   32 bytes, little-endian: magic, version, kind, flags, request number, length of the header,
             crc32 of the header, length of the body
    header   MessagePack of the kind's struct below, read strictly
    body     sections in the order of the header, each at a multiple of 64 bytes, zeros between them

An answer repeats the number of its request; requests of a connection are numbered from 1, and answers come in
any order. The length of a body follows from header and model, so a receiver checks it before it allocates
memory. Like messages between workers, frames are not encrypted (docs/security.md).
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final, cast

import msgspec

from elastane_common.errors import ElastaneError
from elastane_slots.pushes import Verdict

MAGIC: Final = 0xE1A570F5
VERSION: Final = 2
HEADER_BYTES_MAX: Final = 16 * 2**20
FRAME_BYTES_MAX: Final = 2**30
_PREFIX: Final = struct.Struct("<IBBHQIIQ")
PREFIX_BYTES: Final = _PREFIX.size


class SlotFrameError(ElastaneError):
    """A frame is malformed, or the connection broke before an answer; no part of it was used."""

    code = "ELA486"


class PsMemoryError(SlotFrameError):
    """A parameter server has no memory for new rows or dense tensors; no part of the request was done."""

    code = "ELA490"


class Kind(IntEnum):
    """Kind of a frame; the kind of an answer is that of its request plus one."""

    PULL = 1
    PULLED = 2
    PUSH = 3
    PUSHED = 4
    INIT = 5
    INITED = 6
    COPY_BEGIN = 16
    COPY_PART = 17
    COPY_END = 18
    COPY_DONE = 19
    REPLICATE = 24
    REPLICATED = 25
    REPLICATE_INIT = 26
    REPLICATE_CLOSE = 28
    INSPECT = 32
    INSPECTED = 33
    #: The sender closes the connection.
    ERROR = 63


#: Codes of a slot's answers to pulls and pushes: 0, or the number of a verdict.
CODE_OK: Final = 0
CODE_UNINITIALISED: Final = 20
CODE_INVALID: Final = 21
VERDICTS: Final = (
    Verdict.APPLIED,
    Verdict.APPLIED_BEFORE,
    Verdict.RESTORED,
    Verdict.TOO_OLD,
    Verdict.CLOSED,
    Verdict.FROZEN,
    Verdict.MOVED,
    Verdict.OLD_GENERATION,
    Verdict.NOT_YET,
)
#: Numbers of verdicts, from 1.
CODES: Final = {verdict: number for number, verdict in enumerate(VERDICTS, 1)}


class _Header(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    pass


class Pull(_Header):
    """Body: for each table the ids, sorted by slot. lease: of the task; 0 for an evaluation.

    slots: ascending. dense: those of which all blocks are pulled. rows: (table, number of ids of each slot),
    tables ascending.
    """

    generation: int
    lease: int
    slots: list[int]
    dense: list[int] = []
    rows: list[tuple[int, list[int]]] = []


class PulledSlots(_Header):
    """The same answer of several slots. code: CODE_OK, or the reason why they have no data here."""

    slots: list[int]
    code: int
    life: int = -1
    version: int = -1


class Pulled(_Header):
    """Answers of all slots of the pull; each slot occurs once. generation: of the server's map.

    Body: of the slots with data, the blocks; then for each table the rows, sorted by slot.
    """

    generation: int
    answers: list[PulledSlots]


class Push(_Header):
    """Body: the gradients, blocks first. rates: by group. names: slots that get only the task's name.

    slots: with gradients, ascending. seen: (life, version) of each as pulled; life -1 without a pull. blocks:
    (slot, bitmap), slots ascending. rows: (table, number of ids of each slot), tables ascending. pulls,
    later: only with a journal (JournalEntry).
    """

    generation: int
    lease: int
    attempt: int
    dataset: str
    epoch: int
    task: int
    rates: list[list[float]]
    slots: list[int]
    seen: list[tuple[int, int]]
    blocks: list[tuple[int, bytes]] = []
    rows: list[tuple[int, list[int]]] = []
    names: list[int] = []
    pulls: list[tuple[int, int]] = []
    later: list[list[tuple[int, int, int]]] = []


class PushedSlots(_Header):
    """The same answer of several slots. code: a verdict's number, CODE_UNINITIALISED or CODE_INVALID."""

    slots: list[int]
    code: int
    life: int = -1
    version: int = -1
    staleness: int = 0


class Pushed(_Header):
    """Answers of all slots of the push; each slot occurs once."""

    generation: int
    answers: list[PushedSlots]


class Init(_Header):
    """Initial values of blocks; the first ones received are used. digest: of the registered values."""

    generation: int
    digest: bytes
    slots: list[int]


class Inited(_Header):
    """(slot, code): CODE_OK also where a slot was initialised before."""

    generation: int
    slots: list[tuple[int, int]]


class CopyBegin(_Header):
    """Start of a copy of a slot. begun: as in the map. move: True for a new owner, False for a backup."""

    generation: int
    sender: str
    slot: int
    begun: int
    move: bool


class CopyPart(_Header):
    """Body: the parts of sections. sections: as `elastane.tables.sections` encodes their headers."""

    slot: int
    begun: int
    sequence: int
    sections: bytes


class CopyEnd(_Header):
    """End of a copy. parts: number of CopyPart frames. digest: SHA-256 of their bodies and of the record."""

    slot: int
    begun: int
    parts: int
    digest: bytes
    record: bytes


class CopyDone(_Header):
    slot: int
    begun: int
    version: int


class Replicate(_Header):
    """A push that the owner has applied, resulting in `version`. Body: the gradients."""

    generation: int
    sender: str
    slot: int
    life: int
    version: int
    lease: int
    attempt: int
    dataset: str
    epoch: int
    task: int
    rates: list[list[float]]
    scale: float
    blocks: bytes = b""
    rows: list[tuple[int, int]] = []
    pulls: list[tuple[int, int]] = []
    later: list[list[tuple[int, int, int]]] = []


class ReplicateInit(_Header):
    """Body: the blocks."""

    generation: int
    sender: str
    slot: int


class ReplicateClose(_Header):
    """tasks: (dataset, epoch, start, end)."""

    generation: int
    sender: str
    slot: int
    tasks: list[tuple[str, int, int, int]]


class Replicated(_Header):
    """Acknowledges all messages of this slot up to this number."""

    slot: int
    version: int


class Inspect(_Header):
    """Requests a slot's record, for audits."""

    slot: int


class Inspected(_Header):
    """record: as `SlotRecord.encode` has it; empty if the slot is not held. digest: of its weights."""

    slot: int
    generation: int
    record: bytes
    digest: str
    rows: int


class Error(_Header):
    """The error in the connection's last frame."""

    code: str
    message: str


Header = (
    Pull
    | Pulled
    | Push
    | Pushed
    | Init
    | Inited
    | CopyBegin
    | CopyPart
    | CopyEnd
    | CopyDone
    | Replicate
    | Replicated
    | ReplicateInit
    | ReplicateClose
    | Inspect
    | Inspected
    | Error
)
_KINDS: Final[dict[type[_Header], Kind]] = {
    Pull: Kind.PULL,
    Pulled: Kind.PULLED,
    Push: Kind.PUSH,
    Pushed: Kind.PUSHED,
    Init: Kind.INIT,
    Inited: Kind.INITED,
    CopyBegin: Kind.COPY_BEGIN,
    CopyPart: Kind.COPY_PART,
    CopyEnd: Kind.COPY_END,
    CopyDone: Kind.COPY_DONE,
    Replicate: Kind.REPLICATE,
    Replicated: Kind.REPLICATED,
    ReplicateInit: Kind.REPLICATE_INIT,
    ReplicateClose: Kind.REPLICATE_CLOSE,
    Inspect: Kind.INSPECT,
    Inspected: Kind.INSPECTED,
    Error: Kind.ERROR,
}
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(header) for header, kind in _KINDS.items()}
_encoder: Final = msgspec.msgpack.Encoder()


class Prefix(msgspec.Struct, frozen=True):
    """Contents of a prefix. crc: of the header."""

    kind: Kind
    number: int
    header_bytes: int
    crc: int
    body_bytes: int


def encode(header: Header, number: int, body_bytes: int = 0) -> bytes:
    """Return prefix and header of a frame. Raises SlotFrameError if it is too large."""
    encoded = _encoder.encode(header)
    if len(encoded) > HEADER_BYTES_MAX or body_bytes > FRAME_BYTES_MAX:
        raise SlotFrameError(
            f"a frame of {len(encoded)} + {body_bytes} bytes", hint="more slots make smaller frames"
        )
    crc = zlib.crc32(encoded)
    kind = _KINDS[type(header)]
    return _PREFIX.pack(MAGIC, VERSION, kind, 0, number, len(encoded), crc, body_bytes) + encoded


def decode_prefix(data: bytes | bytearray | memoryview) -> Prefix:
    """Read a prefix. Raises SlotFrameError for another protocol, release or size."""
    magic, version, kind, flags, number, header_bytes, crc, body_bytes = _PREFIX.unpack(data)
    if magic != MAGIC:
        raise SlotFrameError("this is no frame of slots")
    if version != VERSION or flags:
        raise SlotFrameError(f"a frame of version {version}; this release reads {VERSION}")
    if kind not in _DECODERS:
        raise SlotFrameError(f"a frame of kind {kind}")
    if header_bytes > HEADER_BYTES_MAX or body_bytes > FRAME_BYTES_MAX:
        raise SlotFrameError(f"a frame of {header_bytes} + {body_bytes} bytes")
    return Prefix(Kind(kind), number, header_bytes, crc, body_bytes)


def decode_header(prefix: Prefix, data: bytes | bytearray | memoryview) -> Header:
    """Read the header that a prefix announced. Raises SlotFrameError."""
    if zlib.crc32(data) != prefix.crc:
        raise SlotFrameError("the header of a frame is damaged")
    try:
        return cast(Header, _DECODERS[prefix.kind].decode(data))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SlotFrameError(f"the header of a {prefix.kind.name} cannot be read: {error}") from error
