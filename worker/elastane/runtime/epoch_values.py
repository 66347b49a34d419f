"""Find variables of the running script that live across epochs, or begin in them, without `job.carry`.

While a worker that has trained from the beginning is alive, its values are the correct ones, and fingerprints
show which other workers differ. When all workers are lost and the job resumes from a checkpoint, nobody has
the values and there is nothing to compare with. So the source is read when training begins:

    at the beginning                    a warning names the line, once a job
    in a worker that joins later        a warning: its values are the first ones
    from a checkpoint of a later epoch  refused, in all workers (`EpochsClosed.lost` travels with the state)

Values that decide only which weights are saved cause a warning. So do attributes of the model and the
dataset, values computed from the model before the loop over mini-batches, and sums over a worker's
mini-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Final

import structlog

from elastane.runtime.loop_carried import roles_in, with_attributes
from elastane.runtime.prepared_objects import PreparedObjects
from elastane.script_source import Carried, loop_at
from elastane.script_source.across_epochs import carry_line, epoch_values, in_words, is_attribute
from elastane.script_source.epoch_body import Inputs
from elastane.script_source.places import display_name, is_script_file, tree_of
from elastane_common.errors import UnsupportedError

_log = structlog.get_logger(__name__)
_PREPARED_LOADER: Final = "ElasticLoader"


class LostValuesError(UnsupportedError):
    """Training would continue without the values of variables that decide its result."""

    code = "ELA343"


class EpochValues:
    """Variables carried by one worker's loop over epochs."""

    def __init__(self, prepared: PreparedObjects, registered: Iterable[object]) -> None:
        self._prepared, self._registered = prepared, tuple(registered)
        self._file = ""
        self._found: list[Carried] = []
        self._of_the_model: list[Carried] = []
        self._of_iterations: list[Carried] = []

    def begin(self, frame: FrameType | None, epoch: int, *, leads: bool, lost: bool) -> None:
        """Examine the loop when the script's first epoch here begins.

        frame: of the caller of `job.epochs`. leads: this worker hosts EST 0. lost: no worker has the values.
        """
        while frame is not None:
            file = frame.f_code.co_filename
            tree = tree_of(file) if is_script_file(file) else None
            loop = loop_at(tree, frame.f_lineno) if tree is not None else None
            if tree is not None and loop is not None:
                roles = roles_in(frame, self._prepared, self._registered)
                names = {**frame.f_globals, **frame.f_locals}
                self._file = display_name(file)
                found = epoch_values(tree, loop, roles, names, inputs_in(frame, self._prepared))
                self._found = _once([one for one in found if one.origin == "carried"])
                self._of_the_model = _once([one for one in found if one.origin == "model"])
                self._of_iterations = _once([one for one in found if one.origin == "turns"])
                break
            frame = frame.f_back
        if lost:
            self.refuse_lost(epoch)
        elif self._found and epoch:
            _log.warning(
                f"this worker begins at epoch {epoch} without the values that the script's variables have "
                f"in other workers: {self._words(self._found)}. A different result is noticed only while "
                f"one of the earlier workers is alive: {carry_line(self._found)}"
            )
        elif self._found and leads:
            resumes = ", and the job could not continue from a checkpoint" if self._lost else ""
            _log.warning(
                f"variables of the script live across epochs: {self._words(self._found)}. A worker that "
                f"joins later does not have them{resumes}: {carry_line(self._found)}"
            )
        if leads or epoch:
            self._warn_of_origins(epoch)

    def refuse_lost(self, epoch: int) -> None:
        """Raise LostValuesError if the script carries values, because no worker has them any more."""
        if self._lost:
            raise LostValuesError(
                f"the job continues at epoch {epoch} from a checkpoint, which does not contain the values "
                f"of the script's variables: {self._words(self._lost)}",
                hint=(
                    f"{carry_line(self._lost)}: checkpoints then contain it. Start a new job with that "
                    "change: the values of this job are lost"
                ),
                variables=[carried.name for carried in self._lost],
            )

    @property
    def _lost(self) -> list[Carried]:
        """Values that decide more than which weights are saved, except attributes: those may be set again."""
        return [one for one in self._found if one.kind != "kept" and not is_attribute(one)]

    def _warn_of_origins(self, epoch: int) -> None:
        if self._of_the_model:
            _log.warning(
                "what is computed from the model before the loop over mini-batches decides its result: "
                f"{self._words(self._of_the_model)}. A worker that joins in the middle of an epoch computes "
                f"it from the weights of that step: {carry_line(self._of_the_model)}; a module is passed to "
                "prepare instead, and its weights are set there by load_state_dict"
            )
        if self._of_iterations and not epoch:
            _log.warning(
                f"a sum over mini-batches affects the training: {self._words(self._of_iterations)}. A "
                "worker sums over those of all ranks that it hosts, each of DDP's ranks over its own: "
                "compute it from something that all workers have alike, such as an evaluation of the whole "
                "set in each worker"
            )

    def _words(self, found: Sequence[Carried]) -> str:
        return f"{self._file}: {'; '.join(map(in_words, found))}"


def inputs_in(frame: FrameType, prepared: PreparedObjects) -> Inputs:
    """Return the names in a frame that refer to the prepared loader and its dataset."""
    dataset = getattr(prepared.loader, "dataset", None)
    loaders, datasets = set[str](), set[str]()
    for name, value in with_attributes(dict(frame.f_globals) | dict(frame.f_locals)):
        if value is prepared.loader or type(value).__name__ == _PREPARED_LOADER:
            loaders.add(name)
        elif dataset is not None and value is dataset:
            datasets.add(name)
    return Inputs(frozenset(loaders), frozenset(datasets))


def _once(found: Iterable[Carried]) -> list[Carried]:
    """Return the first of each variable; one that decides more than which weights are saved comes first."""
    result: dict[str, Carried] = {}
    for carried in sorted(found, key=lambda one: one.kind == "kept"):
        result.setdefault(carried.name, carried)
    return sorted(result.values(), key=lambda one: one.reaches)
