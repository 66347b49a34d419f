"""Evaluation through all stages: the model's outputs for inputs of any member, without side effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elastane.pipeline.est_buffers import EstBuffers
from elastane.pipeline.frames import FrameKey, Kind
from elastane.pipeline.messages import Messages, Step
from elastane.pipeline.stage_run import StageRun
from elastane.rng import Generators


def evaluation(
    messages: Messages,
    inputs: Sequence[Any],
    run: StageRun | None,
    buffers: EstBuffers | None,
    generators: Generators,
) -> Step:
    """Return the outputs of this member's inputs, in order. Collective.

    run, buffers: those of the stage that this member computes; None if it computes none. Inputs are numbered
    by position, then by member; replicas share them by number, as they share ESTs.
    """
    ring, me = messages.ring, messages.me
    counts = yield from messages.tell_all(Kind.COUNTS, len(inputs))
    number = messages.number()
    askers = [
        member
        for place in range(max(counts))
        for member in range(ring.members)
        if place < counts[member]
    ]  # fmt: skip
    own = [item for item, member in enumerate(askers) if member == me]
    for item, value in zip(own, inputs, strict=True):
        messages.send(FrameKey(Kind.EVALUATE, 0, item, number), ring.replica(0, item), value)
        messages.expect(FrameKey(Kind.OUTPUT, 0, item, number), ring.replica(ring.last, item))
    if run is not None:
        assert buffers is not None
        stage = run.stage
        mine = [item for item in range(len(askers)) if ring.replica(stage, item) == me]
        givers = {item: ring.replica(stage - 1, item) if stage else askers[item] for item in mine}
        for item in mine:
            messages.expect(FrameKey(Kind.EVALUATE, stage, item, number), givers[item])
        for item in mine:
            frame = yield from messages.receive(FrameKey(Kind.EVALUATE, stage, item, number), givers[item])
            present = generators.capture()
            try:
                with buffers.aside():
                    value = run.evaluate(frame.value)
            finally:
                generators.exchange(present)
            if stage == ring.last:
                messages.send(FrameKey(Kind.OUTPUT, 0, item, number), askers[item], value)
            else:
                following = FrameKey(Kind.EVALUATE, stage + 1, item, number)
                messages.send(following, ring.replica(stage + 1, item), value)
    outputs = []
    for item in own:
        key = FrameKey(Kind.OUTPUT, 0, item, number)
        frame = yield from messages.receive(key, ring.replica(ring.last, item))
        outputs.append(frame.value)
    return outputs
