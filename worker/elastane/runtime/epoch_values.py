"""Find variables of the running script that live across epochs without `job.carry`.

While a worker that has trained from the beginning is alive, its values are the correct ones, and fingerprints
show which other workers differ. When all workers are lost and the job resumes from a checkpoint, nobody has
the values and there is nothing to compare with. So the source is read when training begins:

    at the beginning                    a warning names the line, once a job
    in a worker that joins later        a warning: its values are the first ones
    from a checkpoint of a later epoch  refused, in all workers (`EpochsClosed.lost` travels with the state)
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType

import structlog

from elastane.errors import UnsupportedError
from elastane.runtime.loop_carried import roles_in
from elastane.runtime.prepared import Prepared
from elastane.script_source import Carried, loop_at
from elastane.script_source.across_epochs import carry_line, epoch_values, in_words
from elastane.script_source.places import display_name, is_script_file, tree_of

_log = structlog.get_logger(__name__)


class LostValuesError(UnsupportedError):
    """Training would continue without the values of variables that decide its result."""

    code = "ELA343"


class EpochValues:
    """Variables carried by one worker's loop over epochs."""

    def __init__(self, prepared: Prepared, registered: Iterable[object]) -> None:
        self._prepared, self._registered = prepared, tuple(registered)
        self._file = ""
        self._found: list[Carried] = []

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
                self._file = display_name(file)
                self._found = epoch_values(tree, loop, roles, {**frame.f_globals, **frame.f_locals})
                break
            frame = frame.f_back
        if lost:
            self.refuse_lost(epoch)
        elif self._found and epoch:
            _log.warning(
                f"this worker begins at epoch {epoch} without the values that the script's variables have "
                f"in other workers: {self._words}. A different result is noticed only while one of the "
                f"earlier workers is alive: {carry_line(self._found)}"
            )
        elif self._found and leads:
            _log.warning(
                f"variables of the script live across epochs: {self._words}. A worker that joins later "
                "does not have them, and the job could not continue from a checkpoint: "
                f"{carry_line(self._found)}"
            )

    def refuse_lost(self, epoch: int) -> None:
        """Raise LostValuesError if the script carries values, because no worker has them any more."""
        if self._found:
            raise LostValuesError(
                f"the job continues at epoch {epoch} from a checkpoint, which does not contain the values "
                f"of the script's variables: {self._words}",
                hint=(
                    f"{carry_line(self._found)}: checkpoints then contain it. Start a new job with that "
                    "change: the values of this job are lost"
                ),
                variables=[carried.name for carried in self._found],
            )

    @property
    def _words(self) -> str:
        return f"{self._file}: {'; '.join(map(in_words, self._found))}"
