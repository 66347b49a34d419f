"""The store's decoder under atheris, which follows what its inputs reach: `make fuzz-stored`.

An input is a number that picks a store of the corpus, and a mask laid over its snapshot or one of its
batches: so that nearly everything stays right, and a change goes deep. What it finds is written to a file
(`crash-...`), with which the command replays it.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(
    include=[
        "elastane_master.decisions",
        "elastane_master.store",
        "elastane_master.jobs.records",
        "elastane_shards",
    ]
):
    from fuzz.stored import Stored, corpus, read

HEADER = 4


def stored_from(payload: bytes) -> Stored:
    """A store of the corpus with bytes replaced: (place high, place low, value) again and again."""
    which, part = payload[0] % len(corpus()), payload[1]
    snapshot, batches = corpus()[which]
    parts = [snapshot, *batches]
    chosen = bytearray(parts[part % len(parts)])
    for at in range(HEADER, len(payload) - 2, 3):
        place = int.from_bytes(payload[at : at + 2], "big") % len(chosen)
        chosen[place] = payload[at + 2]
    if payload[2]:
        del chosen[len(chosen) * payload[2] // 255 :]
    parts[part % len(parts)] = bytes(chosen)
    return parts[0], tuple(parts[1:])


def one_input(payload: bytes) -> None:
    """Whatever is raised here is a fault."""
    if len(payload) < HEADER:
        return
    machine = read(stored_from(payload))
    if machine is not None:
        machine.snapshot()


if __name__ == "__main__":
    corpus()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
