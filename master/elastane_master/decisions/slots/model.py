"""The model of a job: registered once, and equal in all workers."""

from __future__ import annotations

from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.slot_effects import ModelKnown, SendPs
from elastane_master.decisions.slot_events import ModelRegistered
from elastane_master.decisions.slot_model import SlotModel
from elastane_master.decisions.slots import processes
from elastane_master.decisions.state import HALTED, OVER
from elastane_proto.history import events as history
from elastane_proto.job_settings import JobSettings
from elastane_slots.placement import ID_MAX

DIGEST_BYTES = 32
DIMENSIONS_MAX = 64


def register(ctx: DecisionContext, event: ModelRegistered) -> None:
    """Take the first worker's model; the result is False if an equal one was there.

    Raises Rejection("mismatch") for another model, and if it does not fit the job's settings.
    """
    state, book = ctx.state, ctx.state.slots
    if state.phase in OVER or state.phase in HALTED:
        raise Rejection("wrong_phase", f"the job is {state.phase}: {state.reason}", phase=state.phase)
    if book.model is not None:
        if difference := event.model.difference(book.model):
            raise Rejection(
                "mismatch",
                f"the model of worker {event.worker} is not the job's: {difference}",
                hint="all workers of a job train the same model with the same optimizer, from the same"
                " values: with elastane.init(seed=...), and without loading what the job itself has saved",
                worker=event.worker,
            )
        ctx.result = False
        return
    _require_fitting(state.settings, event.model)
    _require_valid(event.model)
    ctx.touch()
    book.model = event.model
    book.gate.limit = state.settings.ps_staleness
    processes.require_map(ctx)
    model = event.model
    ctx.note(history.ModelRegistered(event.worker, model.slots, len(model.tensors), len(model.tables)))
    for record in book.attending():
        ctx.emit(SendPs(record.ps, ModelKnown(model)))
    ctx.result = True


def _require_fitting(settings: JobSettings, model: SlotModel) -> None:
    if model.slots != settings.ps_slots:
        raise Rejection(
            "mismatch",
            f"the model has {model.slots} slots, and the job {settings.ps_slots}",
            hint="the number of slots is fixed with the job: --slots",
            slots=model.slots,
            of_the_job=settings.ps_slots,
        )
    if not settings.checkpoint_url and not settings.ps_replicas:
        raise Rejection(
            "invalid_argument",
            "neither snapshots nor backups: the death of a parameter server would lose its slots",
            hint="set a folder for checkpoints (--checkpoint URL), or --ps-replicas 1",
            field="checkpoint_url",
        )


def _require_valid(model: SlotModel) -> None:
    """Raise Rejection for a model that no worker can have."""
    names = [one.name for one in model.tensors] + [one.name for one in model.tables]
    faults = [
        (not names, "it has no parameter"),
        (
            len(set(names)) < len(names) or "" in names,
            "two parameters have the same name, or one has no name",
        ),
        (len(model.dense_digest) not in (0, DIGEST_BYTES), "its digest is not a SHA-256 digest"),
    ]
    for tensor in model.tensors:
        sizes = (*tensor.shape, *tensor.strides)
        bad = len(tensor.shape) > DIMENSIONS_MAX or len(tensor.strides) not in (0, len(tensor.shape))
        faults.append((bad or min(sizes, default=0) < 0 or not tensor.dtype, f"tensor {tensor.name!r}"))
    for table in model.tables:
        padding = table.padding_row
        bad = not 0 < table.rows <= ID_MAX or table.width < 1 or not table.dtype
        bad = bad or not 0 <= table.scale < float("inf")
        faults.append(
            (bad or (padding is not None and not 0 <= padding < table.rows), f"table {table.name!r}")
        )
    for is_wrong, what in faults:
        if is_wrong:
            raise Rejection("invalid_argument", f"invalid model: {what}", field="model")
