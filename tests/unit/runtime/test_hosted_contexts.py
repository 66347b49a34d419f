"""What a worker reports of its ESTs' contexts, put together again as the master does it."""

from __future__ import annotations

import random

from elastane.context import EstContext
from elastane.rng import Generators
from elastane.runtime.hosted_contexts import HostedContexts, behind
from elastane_master.decisions.contexts import ContextTable
from elastane_master.decisions.events import ContextDelta
from elastane_proto import contexts as wire
from elastane_proto.v1 import common_pb2


class Pair:
    """A worker with one EST, and the master's contexts."""

    def __init__(self) -> None:
        random.seed(1)
        self.step = 0
        self.hosted = HostedContexts()
        self.context = EstContext.initial(0, {"rng/python": self.drawn(1)})
        self.hosted.take({0: self.context}, 0, None)
        self.table = ContextTable({0: [dict(self.context.parts)]})

    def drawn(self, count: int) -> bytes:
        for _ in range(count):
            random.getrandbits(32)
        return Generators().capture()["rng/python"]

    def do_step(self, draws: int, *, positions: bool = True) -> common_pb2.EstContext:
        after = self.context.next({"rng/python": self.drawn(draws)})
        (message,) = self.hosted.reported({0: after}, positions=positions)
        message = common_pb2.EstContext.FromString(message.SerializeToString())
        parts, of_generators = wire.parts_from_proto(message), wire.positions_from_proto(message)
        stored = self.table.after(self.step, [ContextDelta(0, parts, message.delta, of_generators)])
        self.step += 1
        self.table.put(self.step, [stored[0]])
        assert stored[0] == dict(after.parts)
        self.context = after
        self.hosted.applied({0: after})
        return message


def test_a_generator_is_reported_by_its_position_until_its_words_change() -> None:
    pair = Pair()
    for draws, is_near in ((1, True), (600, True), (0, True), (30, False), (3, True), (5_000, False)):
        message = pair.do_step(draws)
        assert message.rng.HasField("python") is not is_near
        assert len(message.positions) == (is_near and draws > 0)
        assert message.ByteSize() < 60 or not is_near


def test_an_older_master_is_sent_whole_states() -> None:
    message = Pair().do_step(3, positions=False)
    assert message.rng.HasField("python") and not message.positions


def test_what_the_master_does_not_have_is_reported_whole() -> None:
    pair = Pair()
    pair.hosted.take({0: behind(pair.context, {"rng/python": pair.drawn(4)}, 0)}, 0, None)
    after = pair.hosted.now[0].next({"rng/python": pair.drawn(3)})
    (message,) = pair.hosted.reported({0: after}, positions=True)
    assert message.rng.python == after.parts["rng/python"] and not message.positions
