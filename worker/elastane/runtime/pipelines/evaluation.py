"""Collective work between epochs: evaluation through all stages, and the whole model's weights on request.

Each worker runs the script's code between epochs at its own pace, and some may skip it: a worker that has
just joined, or one that does not lead, may already be waiting for its next step. So all members meet in
rounds; one that evaluates joins a round for every few mini-batches, one that waits joins with an empty
request. In each round every member announces its position (which call of `evaluate`, how far), a request for
weights, or that it waits. Then

    no request           waiting members go on to the next step. After the last step the leader receives the
                         weights, because the script's code after its loop over epochs may need them when the
                         others are gone; nobody leaves before the leader has confirmed
    weights requested    all units' weights are sent to all members that asked
    evaluation           the member furthest behind is served: its mini-batches go through the stages, and the
                         results of `fn` are sent to all. Members at the same position with the same
                         mini-batches use them, too. A position is identified by the script's lines, since
                         workers may evaluate at places where others do not

A round interrupted by a change of the ring is repeated in the new ring; no step has been made meanwhile, so
the weights are the same. If the job has gone back to a checkpoint, this process cannot know what the script
would do with the result, so it exits and is replaced.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import structlog
import torch
from torch import Tensor

from elastane.collective.ring_errors import RingError
from elastane.runtime.pipelines.errors import EvaluationError
from elastane.runtime.pipelines.final_weights import FinalWeights
from elastane.runtime.pipelines.parts import PipelineParts
from elastane.runtime.pipelines.pipe import EvalMode, check_place
from elastane.state.value_digests import digest_any

_log = structlog.get_logger(__name__)

Lines = tuple[tuple[int, str], ...]
"""Location of a call: (line, function) for each frame, from the script's module to the caller."""
Place = tuple[int, Lines, int, str]
"""Position in evaluations: (call of `evaluate` at these lines since the last epoch's end, from 1; the lines;
group of mini-batches; their digest). Sorts in the order in which a script reaches them, as far as known."""
_WEIGHTS: Final[Place] = (0, (), 0, "weights")
"""Position of a request for weights; sorts before evaluations, which the same member may ask for next."""
_ENDED: Final = "ended"
"""Position of a member that waits after the last epoch."""


@dataclass(frozen=True)
class _Group:
    """Mini-batches that are evaluated together; empty if this member waits or asks for weights."""

    place: Place | str | None = None
    batches: Sequence[Any] = ()
    inputs: Sequence[Any] = ()
    fn: Callable[[Any, Any], Any] | None = None


class Evaluation:
    """Evaluation in one worker. Used by the script's thread. num_ests: N.

    settle: takes part in a change of the ring while the script's code between epochs runs. refusal: returns
    why the script may not evaluate now; empty: it may.
    """

    def __init__(
        self,
        parts: PipelineParts,
        num_ests: int,
        settle: Callable[[], None],
        refusal: Callable[[], str],
        is_complete: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_complete = is_complete
        self._parts, self._num_ests, self._settle, self._refusal = parts, num_ests, settle, refusal
        self._protocol = parts.worker_session.protocol
        self._calls: Counter[Lines] = Counter()
        self._step = -1
        self._final = FinalWeights()

    def run(self, batches: Iterable[Any], fn: Callable[[Any, Any], Any]) -> list[Any]:
        """See `Pipe.evaluate`."""
        self._check("pipe.evaluate")
        step = self._protocol.applied_step
        if step != self._step:
            self._calls, self._step = Counter(), step
        lines = _lines(sys._getframe(1))
        self._calls[lines] += 1
        found: list[Any] = []
        split, taken = self._parts.prepared.options.split, iter(batches)
        for number in itertools.count():
            # As many at a time as in a step, independent of the ring.
            group = list(itertools.islice(taken, self._num_ests))
            if not group:
                return found
            inputs = [split(batch)[0] for batch in group]
            place = self._calls[lines], lines, number, digest_any(group)
            found += self._answer(_Group(place, group, inputs, fn), step)
        raise AssertionError("unreachable")

    def weights(self) -> dict[str, Tensor]:
        """See `Pipe.state_dict`."""
        if self._final.failure:
            raise EvaluationError(
                f"the trained weights could not be kept: {self._final.failure}",
                hint="call pipe.state_dict() in the loop over job.epochs; TMPDIR says where files are kept",
            )
        if self._final.is_whole:
            return self._final.read()
        self._check("pipe.state_dict")
        found: dict[str, Tensor] = self._answer(_Group(_WEIGHTS), self._protocol.applied_step)
        return found

    def serve(self, *, ended: bool = False) -> bool:
        """Take part in the other members' requests while this worker waits; False if the ring has changed.

        ended: it waits after the last epoch.
        """
        try:
            while self._protocol.is_running:
                if self._round(_Group(_ENDED if ended else None)) is None:
                    return True
        except RingError as error:
            if ended and self._is_complete() and not self._protocol.changing:
                # All steps are committed: the master forms no ring for code after the loop.
                if not self._final.is_whole:
                    self._final.lose(str(error))
                    _log.warning(f"the trained weights could not be brought together: {error}")
                return True
            self._tell_broken(error)
        return False

    def _check(self, call: str) -> None:
        check_place(call, self._refusal())

    def _answer(self, group: _Group, step: int) -> Any:
        """Return the results of `fn` for the group's outputs, or the weights."""
        while True:
            try:
                if not self._protocol.is_running:
                    self._change(step)
                answer = self._round(group)
                if answer is not None and answer[0] == group.place:
                    return answer[1]
            except RingError as error:
                self._tell_broken(error)

    def _round(self, group: _Group) -> tuple[Place, Any] | None:
        """Run one round; return its subject and the results. None: there was no request.

        Raises RingAborted, RingBroken.
        """
        parts, executor = self._parts, self._parts.executor
        told = executor.tell_all((group.place, _autocasts()))
        at = [place for place, _ in told]
        places = [place for place in at if isinstance(place, tuple)]
        if not places:
            self._final.forget()  # kept before the job went back to a checkpoint
            if all(place == _ENDED for place in at):
                self._final.begin(wanted=executor.me == executor.leader)
                executor.gather_weights([executor.leader], self._final.take)
                self._final.end()
                executor.tell_all(None)  # messages of a worker that leaves could be lost with it
            executor.flush()
            return None
        first = min(places)
        if first == _WEIGHTS:
            weights: dict[str, Tensor] = {}
            askers = [member for member, place in enumerate(at) if place == _WEIGHTS]
            executor.gather_weights(askers, weights.update)
            executor.flush()
            return first, weights
        if any(place[:3] == first[:3] and place != first for place in places):
            raise EvaluationError(
                "workers evaluate with different mini-batches: the answer would depend on who leads",
                hint="evaluate without shuffling and random transforms, or `if job.is_leader:`",
            )
        asker = at.index(first)
        asks = asker == executor.me
        with EvalMode(parts.state.units.as_model()), _under(told[asker][1]):
            outputs = executor.forward_only(group.inputs if asks else ())
            results = None
            if asks:
                assert group.fn is not None
                before = parts.states()
                results = [group.fn(out, batch) for out, batch in zip(outputs, group.batches, strict=True)]
                parts.put(before)
        answer = executor.tell_all(results)[asker]
        executor.flush()
        return first, answer

    def _change(self, step: int) -> None:
        """Take part in a change of the ring. Ends the process if the job goes on from another step."""
        self._settle()
        if self._protocol.applied_step != step:
            self._parts.worker_session.exits.start_anew(
                f"the job went from step {step} to {self._protocol.applied_step} while the script evaluated"
            )

    def _tell_broken(self, error: RingError) -> None:
        """Tell the master that the ring has broken, and wait until it changes."""
        session, why = self._parts.worker_session, str(error)
        session.tell(lambda: self._protocol.broken(self._protocol.applied_step, why))
        session.wait_for(lambda: not self._protocol.is_running)


def _lines(frame: FrameType | None) -> Lines:
    """Return the lines of a call, up to the script's module; they may differ between workers."""
    found: list[tuple[int, str]] = []
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != "elastane":
            found.append((frame.f_lineno, frame.f_code.co_name))
        if frame.f_globals.get("__name__") == "__main__" and frame.f_code.co_name == "<module>":
            break
        frame = frame.f_back
    return tuple(reversed(found))


def _autocasts() -> dict[str, str]:
    """Return autocast's current dtypes, by device type."""
    return {
        device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    }


@contextmanager
def _under(casts: Mapping[str, str]) -> Iterator[None]:
    """Context manager: use the evaluating member's autocast settings."""
    present = _autocasts()
    with ExitStack() as stack:
        for device in {*casts, *present}:
            if casts.get(device) != present.get(device):
                dtype = getattr(torch, casts[device]) if device in casts else None
                stack.enter_context(torch.autocast(device, dtype, enabled=device in casts))
        yield
