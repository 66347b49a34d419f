"""Journal of the pushes applied to slots, in order, from which an asynchronous run can be replayed.

    journal/PROCESS/model     PsWelcome, with the model and the settings of the job
    journal/PROCESS/NUMBER    a segment: magic, records
                              a record: length and crc32, 4 bytes each; MessagePack (`journal_records`)

A process records every push that it applies, as owner or as backup, before the push becomes visible; two
processes write equal records of a push. On a disk, segments grow record by record. Object stores cannot
append, so there segments are written as a whole, and records that a process had not written when it died are
missing unless a backup has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from elastane.tables.journal_records import HEAD_BYTES, JournalError, Record, decode_record
from elastane_common.storage import Folder

FOLDER: Final = "journal"
MODEL: Final = "model"
MAGIC: Final = b"elastane-journal-2\n"
#: Size in bytes at which a segment ends and the next begins.
SEGMENT_BYTES: Final = 2**20
SEGMENT_BYTES_MAX: Final = 2**26


def segment_path(process: str, number: int) -> str:
    """Return the name of a segment; numbers begin with 1."""
    return f"{FOLDER}/{process}/{number:08}"


class JournalReading:
    """Reads the journal in a job's folder. torn: segments that end in the middle of a record.

    A process that dies while it writes leaves such a segment; the incomplete push was never visible.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.torn: list[str] = []
        self._segments: dict[str, list[str]] = {}
        self._sizes: dict[str, int] = {}
        for name, size in folder.within(FOLDER).files():
            process, _, number = name.partition("/")
            self._sizes[name] = size
            if number != MODEL:
                self._segments.setdefault(process, []).append(number)

    def models(self) -> Iterator[bytes]:
        """Yield the model as recorded by each process. Raises JournalError if a process lacks it."""
        if not self._segments:
            raise JournalError(
                f"there is no journal in {self._folder.url}",
                hint="a run writes it with --ps-journal, in the folder of --checkpoint",
            )
        for process in self._segments:
            yield self._read(f"{process}/{MODEL}")

    def records(self) -> Iterator[Record]:
        """Return the records of all processes, in order within each process.

        Raises JournalError if a segment is missing or damaged.
        """
        for process, numbers in self._segments.items():
            for position, number in enumerate(numbers, 1):
                if number != f"{position:08}":
                    raise JournalError(f"the segment {process}/{position:08} is missing", segment=process)
                yield from self._segment(f"{process}/{number}", last=position == len(numbers))

    def _segment(self, name: str, *, last: bool) -> Iterator[Record]:
        content = self._read(name)
        at = len(MAGIC)
        if content[:at] != MAGIC and not (last and MAGIC.startswith(content)):
            raise JournalError(f"{name} is no segment of a journal", segment=name)
        while at < len(content):
            head = content[at : at + HEAD_BYTES]
            end = at + HEAD_BYTES + int.from_bytes(head[:4], "little")
            if last and end > len(content):
                self.torn.append(name)
                return
            try:
                yield decode_record(head, content[at + HEAD_BYTES : end])
            except JournalError as error:
                raise JournalError(f"the segment {name} is damaged", segment=name) from error
            at = end

    def _read(self, name: str) -> bytes:
        found = self._folder.read(f"{FOLDER}/{name}", bytes_max=SEGMENT_BYTES_MAX)
        if found is None:
            raise JournalError(f"{name} of the journal is missing", segment=name)
        return found
