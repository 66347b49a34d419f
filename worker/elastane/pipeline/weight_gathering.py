"""Gathers the whole model's weights from the holders of its stages, for members that ask for them."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import Tensor

from elastane.pipeline.frames import FrameKey, Kind
from elastane.pipeline.messages import Messages, Step
from elastane.state.model_units import ModelUnits

#: Receives a unit's parameters and persistent buffers, by stock's names, on the CPU.
Take = Callable[[dict[str, Tensor]], object]


def gathering(messages: Messages, units: ModelUnits, askers: Collection[int], take: Take) -> Step:
    """Send every unit's weights from the first replica of its stage to all askers. Collective.

    take: called in each asker with one unit at a time. No member needs memory for more than one unit besides
    those it holds, apart from what `take` keeps.
    """
    ring, me = messages.ring, messages.me
    number = messages.number()
    for stage in range(ring.last + 1):
        giver = ring.plan.stages[stage].devices[0]
        for unit in ring.units_of(stage):
            key = FrameKey(Kind.WEIGHTS, stage, unit, number)
            if giver == me:
                state = units.module(unit).state_dict(prefix=units.prefix(unit))
                weights = {name: value.detach().to("cpu", copy=True) for name, value in state.items()}
                for asker in askers:
                    if asker == me:
                        take(weights)
                    else:
                        messages.send(key, asker, weights)
                messages.links.settle()
            elif me in askers:
                messages.expect(key, giver)
                frame = yield from messages.receive(key, giver)
                take(frame.value)
