"""Events as people read them: one sentence each, and the facts beside it. Pure.

The only place that turns events into prose. `facts_text` is the form of facts for clients older than the
typed events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

from elastane_proto.amounts import money_text, price_text
from elastane_proto.history import events as e
from elastane_proto.history.events import DevicePrices, HistoryEvent, Place, Prices, Spent

NANOS = 1_000_000_000
HOUR_NANOS = 3600 * NANOS

_SAID: dict[type[HistoryEvent], Callable[[Any], str]] = {}
Event = TypeVar("Event", bound=HistoryEvent)


def describe(event: HistoryEvent) -> str:
    """Return the decision and its reason in one sentence; empty for an event of an unknown kind."""
    return _SAID[type(event)](event)


def _says(kind: type[Event]) -> Callable[[Callable[[Event], str]], Callable[[Event], str]]:
    """Register a function as the description of this struct."""

    def register(said: Callable[[Event], str]) -> Callable[[Event], str]:
        _SAID[kind] = said
        return said

    return register


# ------------------------------------------------------------------ facts


def facts_text(event: HistoryEvent) -> dict[str, str]:
    """Return the facts shown beside the sentence, as texts."""
    facts: dict[str, str] = {}
    for name in event.facts:
        value = getattr(event, name)
        if name == "members":
            facts[name] = members_text(value)
        elif name == "votes":
            facts |= {f"digest_{vote.worker}": vote.digest for vote in value}
        else:
            facts[name] = f"{value:g}" if name == "max_wait_seconds" else str(value)
    spent = getattr(event, "spent", None)
    return facts if spent is None else facts | _spent_facts(spent)


def members_text(members: Iterable[Place]) -> str:
    """ "w0[0:2], w1[2:4]"; "none" of a ring without members."""
    return ", ".join(f"{place.worker}[{place.start}:{place.end}]" for place in members) or "none"


def _spent_facts(spent: Spent) -> dict[str, str]:
    return {
        "currency": spent.currency,
        "spent_micros": str(spent.spent_micros),
        "on_demand_micros": str(spent.on_demand_micros),
        "saved_micros": str(spent.saved_micros),
        "worker_seconds": _seconds_text(spent.worker_nanos),
        "useful_seconds": _seconds_text(spent.useful_nanos),
        "replayed_seconds": _seconds_text(spent.replayed_nanos),
        "idle_seconds": _seconds_text(spent.idle_nanos),
    }


def _seconds_text(nanos: int) -> str:
    """Seconds, exactly."""
    return f"{nanos // NANOS}.{nanos % NANOS:09d}"


# ------------------------------------------------------------------ the life of a job


@_says(e.JobCreated)
def _(event: e.JobCreated) -> str:
    return f"{event.ests} ESTs on {event.workers_min} to {event.workers_max} workers"


@_says(e.JobRepaired)
def _(event: e.JobRepaired) -> str:
    return f"an operator accepted the loss: {event.lost}" if event.lost else "what was missing is there again"


def _why(event: Any) -> str:
    return str(event.why)


_SAID |= dict.fromkeys(
    (
        e.JobWaiting,
        e.JobRunning,
        e.JobSuspended,
        e.JobMaxWaitExceeded,
        e.JobSucceeded,
        e.JobFailed,
        e.JobCancelled,
        e.RingAnnounced,
        e.CheckpointRequested,
        e.CheckpointFailed,
        e.CheckpointRejected,
    ),
    _why,
)
_SAID[e.UnknownEvent] = lambda event: ""


@_says(e.JobResumed)
def _(event: e.JobResumed) -> str:
    return f"resumed by an operator; it was {event.phase}: {event.why}"


@_says(e.SuspensionCalledOff)
def _(event: e.SuspensionCalledOff) -> str:
    return "the suspension is called off before it took effect"


@_says(e.SuspensionGivenUp)
def _(event: e.SuspensionGivenUp) -> str:
    return "the suspension is given up: its checkpoint could not be saved"


@_says(e.StepsUnsaved)
def _(event: e.StepsUnsaved) -> str:
    return done_again(event.lost)


def done_again(lost: int) -> str:
    """Describe the consequence of steps that are in no checkpoint."""
    return f"{lost} steps after the newest checkpoint will be done again"


@_says(e.EndedEarly)
def _(event: e.EndedEarly) -> str:
    return f"ended early at epoch {event.epoch}, step {event.at_step} by the script ({event.place})"


@_says(e.JobCost)
def _(event: e.JobCost) -> str:
    return f"job {event.phase.replace('_', ' ')}: {_spent(event.spent)}"


@_says(e.PricesChanged)
def _(event: e.PricesChanged) -> str:
    return f"{_prices(event.now)}, before {_prices(event.before)}; so far: {_spent(event.spent)}"


def _prices(prices: Prices) -> str:
    spot, on_demand = (
        price_text(micros, prices.currency) for micros in (prices.spot_micros, prices.on_demand_micros)
    )
    own = "".join(f", {_device_prices(device, prices.currency)}" for device in prices.devices)
    return f"spot {spot} and on demand {on_demand} an hour{own}"


def _device_prices(prices: DevicePrices, currency: str) -> str:
    named = (("spot", prices.spot_micros), ("on demand", prices.on_demand_micros))
    told = " and ".join(f"{name} {price_text(price, currency)}" for name, price in named if price is not None)
    return f"of {prices.device_type} {told}"


def _spent(spent: Spent) -> str:
    hours = f"{spent.worker_nanos / HOUR_NANOS:.2f} worker-hours"
    replayed, idle = spent.replayed_nanos / HOUR_NANOS, spent.idle_nanos / HOUR_NANOS
    waste = f"{replayed:.2f} h of them replayed, {idle:.2f} h idle"
    if not spent.priced:
        return f"{hours}, {waste}; no price is known"
    text = f"{money_text(spent.spent_micros, spent.currency)} for {hours}, {waste}"
    if spent.savings is not None:
        on_demand = money_text(spent.on_demand_micros, spent.currency)
        text += f"; on demand {on_demand}, saved {spent.savings:.1%}"
    if spent.unpriced_nanos:
        text += f"; {spent.unpriced_nanos / HOUR_NANOS:.2f} h without a known price"
    return text


# ------------------------------------------------------------------ masters


@_says(e.MasterStarted)
def _(event: e.MasterStarted) -> str:
    return f"{event.master} leads the job"


@_says(e.MasterRecovered)
def _(event: e.MasterRecovered) -> str:
    return f"{event.master} took over; {event.awaited} workers have {event.grace_seconds:g} s to return"


# ------------------------------------------------------------------ workers


@_says(e.WorkerJoined)
def _(event: e.WorkerJoined) -> str:
    return f"{event.worker} joined to {'lease tasks' if event.role == 'tasks' else 'train'}"


@_says(e.WorkerReturned)
def _(event: e.WorkerReturned) -> str:
    return f"{event.worker} returned to the restarted master"


@_says(e.WorkerStandby)
def _(event: e.WorkerStandby) -> str:
    return f"{event.worker}: the ring has its {event.ring_workers} workers"


@_says(e.WorkerLost)
def _(event: e.WorkerLost) -> str:
    if event.how in ("stream", "raised", ""):
        return f"{event.worker}: {lost_how(event)}"
    return f"{event.worker} {lost_how(event)}"


def lost_how(event: e.WorkerLost) -> str:
    """Describe what happened to the worker, without its name."""
    match event.how:
        case "raised":
            return f"the script raised: {event.why}"
        case "new_session":
            return "opened a new session: its old one is dead"
        case "started_anew":
            return "was started anew"
        case "replaced":
            return "was replaced: another process with its id joined" + (
                f" ({event.why})" if event.why else ""
            )
        case "not_returned":
            return f"did not return within {event.grace_seconds:g} s"
        case _:
            return event.why


@_says(e.WorkerExited)
def _(event: e.WorkerExited) -> str:
    killed = f"killed, out of memory ({event.out_of_memory})" if event.out_of_memory else event.how
    words = f"; its last words: {event.last_words}" if event.last_words else ""
    return f"{event.worker} {killed}{words}"


@_says(e.LogFilesIncomplete)
def _(event: e.LogFilesIncomplete) -> str:
    return (
        f"output of workers is missing in {event.location} on {event.host}: {event.why}; the training goes on"
    )


@_says(e.WorkerEvicted)
def _(event: e.WorkerEvicted) -> str:
    return f"{event.worker}: {event.why}"


@_says(e.WorkerLeft)
def _(event: e.WorkerLeft) -> str:
    return f"{event.worker} {left_how(event)}" + (f": {event.why}" if event.why else "")


def left_how(event: e.WorkerLeft) -> str:
    """Describe how the worker ended, without its name."""
    return "came to its end" if event.finished else "was drained"


@_says(e.WorkerDraining)
def _(event: e.WorkerDraining) -> str:
    return f"{event.worker}: {event.why}"


@_says(e.WorkerQuarantined)
def _(event: e.WorkerQuarantined) -> str:
    return f"{event.worker} {stands_by(event)}"


@_says(e.WorkerBarred)
def _(event: e.WorkerBarred) -> str:
    return f"{event.worker} {stands_by(event)}"


@_says(e.HostBarred)
def _(event: e.HostBarred) -> str:
    return f"{event.worker} {stands_by(event)}"


def stands_by(event: e.WorkerQuarantined | e.WorkerBarred | e.HostBarred) -> str:
    """Why the worker stands by, without its name."""
    if isinstance(event, e.HostBarred):
        return (
            f"is on host {event.host}, where slow workers were replaced: stands by for"
            f" {event.delay_seconds / 60:.0f} min"
        )
    if isinstance(event, e.WorkerBarred):
        return (
            f"computed other gradients than two other workers in step {event.at_step}: stands by permanently"
        )
    return (
        f"died {event.deaths} times within {event.window_seconds / 60:g} min:"
        f" stands by for {event.delay_seconds:g} s"
    )


_SLOW = {
    "compute": "computes at {ratio:.2f} of the usual rate of its device type",
    "data": "waits for its data, at {ratio:.2f} of the usual rate of its device type",
    "network": "is late with its gradients, as if at {ratio:.2f} of the usual rate of its device type",
}


def how_slow(cause: str, ratio: float) -> str:
    """Describe a straggler, without its name."""
    return "it " + _SLOW.get(cause, "has {ratio:.2f} of the usual rate of its device type").format(
        ratio=ratio
    )


def _step_rates(before: float, after: float) -> str:
    if not before or not after:
        return ""
    return f"; {before:.3g} steps/s, {after:.3g} expected"


@_says(e.StragglerReweighted)
def _(event: e.StragglerReweighted) -> str:
    return (
        f"{event.worker} gets {event.ests} ESTs instead of {event.ests_before}: a straggler,"
        f" {how_slow(event.cause, event.ratio)}{_step_rates(event.rate_before, event.rate_after)}"
    )


@_says(e.StragglerReplaced)
def _(event: e.StragglerReplaced) -> str:
    barred = (
        f"; host {event.host} gets no worker for {event.barred_seconds / 60:.0f} min"
        if event.barred_seconds
        else ""
    )
    return (
        f"{event.newcomer} replaced {event.worker}, a straggler: {how_slow(event.cause, event.ratio)}"
        f"{_step_rates(event.rate_before, event.rate_after)}{barred}"
    )


@_says(e.WorkerReleased)
def _(event: e.WorkerReleased) -> str:
    return f"{event.worker} has stood by long enough and may join"


@_says(e.NoticeOver)
def _(event: e.NoticeOver) -> str:
    what = "did not leave the ring" if event.in_ring else "did not stop"
    return f"{event.worker} {what} within the notice its node was given"


@_says(e.NoticeOverUnsaved)
def _(event: e.NoticeOverUnsaved) -> str:
    return f"{unsaved_in_time(event)}: {done_again(event.lost)}"


def unsaved_in_time(event: e.NoticeOverUnsaved) -> str:
    """Describe the checkpoint's outcome."""
    return (
        f"{event.worker}'s notice is over, and the checkpoint of step {event.at_step} was not saved within"
        f" {event.waited_seconds:.1f} s"
    )


# ------------------------------------------------------------------ the ring


@_says(e.RingScaled)
def _(event: e.RingScaled) -> str:
    return f"scaled by an operator to {event.workers_min} to {event.workers_max} workers, at a step boundary"


@_says(e.ScalingSet)
def _(event: e.ScalingSet) -> str:
    bounds = f"{event.workers_min} to {event.workers_max} workers"
    if not event.mode:
        return f"no longer scales by itself: {bounds}, as an operator asked"
    return f"scales by itself from now on, within {bounds}: {_mode_text(event.mode)}"


def _mode_text(mode: str) -> str:
    """Return a mode as people read it: the deadline is stored in seconds since the epoch."""
    name, _, value = mode.partition("=")
    if name != "deadline":
        return mode
    return f"deadline={datetime.fromtimestamp(float(value), UTC):%Y-%m-%dT%H:%M:%SZ}"


@_says(e.JobAutoscaled)
def _(event: e.JobAutoscaled) -> str:
    on_demand = f", {event.on_demand} of them on demand" if event.on_demand else ""
    rates = _rates(event.rate_before, event.rate_predicted, "predicted")
    return f"scaled from {event.workers_before} to {event.workers} workers{on_demand}{rates}: {event.why}"


@_says(e.ScaleRolledBack)
def _(event: e.ScaleRolledBack) -> str:
    rates = _rates(event.rate_before, event.rate_after, "measured")
    barred = f"; not tried again for {event.barred_seconds:.0f} s" if event.barred_seconds else ""
    return f"scaled back from {event.workers_tried} to {event.workers} workers{rates}: {event.why}{barred}"


def _rates(before: float, after: float, how: str) -> str:
    if not before or not after:
        return ""
    return f", {before:.3g} steps/s before and {after:.3g} {how}"


@_says(e.RingFormed)
def _(event: e.RingFormed) -> str:
    who = "1 worker goes" if event.workers == 1 else f"{event.workers} workers go"
    return f"{who} on from step {event.resume_step}, {event.receivers} of them receive the state"


@_says(e.StagesPlanned)
def _(event: e.StagesPlanned) -> str:
    count = len(event.stages)
    where = "; ".join(stage_text(stage) for stage in event.stages)
    seconds = f"; {event.step_seconds:.3g} s a step are predicted" if event.step_seconds else ""
    if event.step_seconds_before and event.step_seconds:
        seconds += f", {event.step_seconds_before:.3g} s before"
    how = "planned anew" if event.replanned else "planned"
    stages = "1 stage is" if count == 1 else f"{count} stages are"
    return f"{stages} {how}: {where}{seconds}: {event.why}"


def stage_text(stage: e.StagePlace) -> str:
    """Say which units a stage has, and who runs them: "units 0 to 3 on a, b, shadow c"."""
    last = stage.end_unit - 1
    units = f"units {stage.first_unit} to {last}" if last > stage.first_unit else f"unit {last}"
    memory = f", {stage.memory}" if stage.memory not in ("", "plain") else ""
    shadows = f", shadow {', '.join(stage.shadows)}" if stage.shadows else ""
    return f"{units} on {', '.join(stage.replicas)}{memory}{shadows}"


@_says(e.UnitsLost)
def _(event: e.UnitsLost) -> str:
    return (
        f"no worker holds {event.units} after {event.at_step} steps: all go back to the newest checkpoint; "
        "--shadow 1 would have kept a second copy"
    )


@_says(e.UnitsAwaited)
def _(event: e.UnitsAwaited) -> str:
    workers = " and ".join(event.workers)
    return (
        f"no connected worker holds {event.units} after {event.at_step} steps: {workers}, whose stream broke,"
        f" may return for {event.seconds:.3g} s; --shadow 1 would have kept a second copy"
    )


@_says(e.PipelineWithout)
def _(event: e.PipelineWithout) -> str:
    return f"the script is a pipeline, which runs without {event.options}"


# ------------------------------------------------------------------ the history of steps


@_says(e.CheckpointLoaded)
def _(event: e.CheckpointLoaded) -> str:
    begins = f"; the history of this job begins with step {event.at_step}" if event.begins else ""
    return f"training continues from {event.checkpoint}{begins}"


@_says(e.HistoryRewound)
def _(event: e.HistoryRewound) -> str:
    source = event.checkpoint or "the script's initial state"
    return (
        f"no worker holds the state: from {source} on, steps {event.to_step} to {event.from_step - 1}"
        " are done again"
    )


@_says(e.StoreBehind)
def _(event: e.StoreBehind) -> str:
    return f"{event.why}: the store has lost what was acknowledged"


@_says(e.HistoryRestored)
def _(event: e.HistoryRestored) -> str:
    return (
        f"{_steps(event.from_step, event.to_step)} whole again: lost by the store,"
        f" brought by {', '.join(event.workers)}"
    )


@_says(e.HistoryForgotten)
def _(event: e.HistoryForgotten) -> str:
    return (
        f"{_steps(event.to_step, event.from_step)} done again: the store lost what was acknowledged,"
        f" and {event.missing}"
    )


def _steps(first: int, end: int) -> str:
    return f"step {first} is" if end == first + 1 else f"steps {first} to {end - 1} are"


@_says(e.IntervalLost)
def _(event: e.IntervalLost) -> str:
    return f"the code before step {event.at_step} must run again: {event.why}"


@_says(e.StateDiffers)
def _(event: e.StateDiffers) -> str:
    return f"{' and '.join(event.workers)} differ at the start of step {event.at_step}"


@_says(e.CheckpointSaved)
def _(event: e.CheckpointSaved) -> str:
    return f"all {event.shards} shards and the manifest are written"


# ------------------------------------------------------------------ broken hardware


@_says(e.SentinelDifference)
def _(event: e.SentinelDifference) -> str:
    who = " and ".join(event.workers)
    return f"{who} have different gradients for EST {event.virtual_rank} in step {event.at_step}"


@_says(e.SentinelFaulty)
def _(event: e.SentinelFaulty) -> str:
    return f"{computed_wrongly(event)}; what was done from step {event.doubtful_from} on is in doubt"


def computed_wrongly(event: e.SentinelFaulty) -> str:
    """Name the workers with wrong results."""
    return (
        f"{' and '.join(event.faulty)} computed other gradients for EST {event.virtual_rank}"
        f" in step {event.at_step} than {' and '.join(event.right)}"
    )


@_says(e.SentinelUndecided)
def _(event: e.SentinelUndecided) -> str:
    # Events of older releases may not name the workers that differ.
    both = ", ".join(event.workers[:-1]), *event.workers[-1:]
    names = " and ".join(filter(None, both)) or "workers"
    if event.third_missing:
        why = "no third worker is there to decide which of them is right"
    else:
        why = "no two of them agree: does the script's arithmetic repeat? `elastane doctor` says"
    return (
        f"{names} have different gradients for EST {event.virtual_rank} in step {event.at_step}, and {why};"
        f" what was done from step {event.doubtful_from} on is in doubt"
    )


# ------------------------------------------------------------------ dynamic tasks


@_says(e.DatasetCreated)
def _(event: e.DatasetCreated) -> str:
    return f"{event.dataset}: tasks of {event.task_size}, {event.epochs} epochs"


@_says(e.TaskFailed)
@_says(e.TaskTimedOut)
def _(event: e.TaskFailed | e.TaskTimedOut) -> str:
    return event.error + (" (parked: no attempt is left)" if event.parked else " (it will be leased again)")


@_says(e.MoreTasksFailed)
@_says(e.MoreTasksTimedOut)
def _(event: e.MoreTasksFailed | e.MoreTasksTimedOut) -> str:
    return f"and {event.count} more tasks of {event.dataset}"


# ------------------------------------------------------------------ parameter servers


@_says(e.ModelRegistered)
def _(event: e.ModelRegistered) -> str:
    return (
        f"{event.worker} has registered the model: {_count(event.tensors, 'dense tensor')} and"
        f" {_count(event.tables, 'table')} in {_count(event.slots, 'slot')}"
    )


@_says(e.PsJoined)
def _(event: e.PsJoined) -> str:
    return f"{event.worker} on {event.host} {'is back with its slots' if event.returned else 'has joined'}"


@_says(e.PsLost)
def _(event: e.PsLost) -> str:
    became = [
        *([f"{_count(event.promoted, 'slot')} taken over by backups"] if event.promoted else []),
        *([f"{_count(event.restored, 'slot')} restored from snapshots"] if event.restored else []),
    ]
    return f"{event.worker}: {event.why}; {' and '.join(became) or 'it had no slot'}"


@_says(e.PsDraining)
def _(event: e.PsDraining) -> str:
    return f"{event.worker}: {event.why}; {_count(event.slots, 'slot')} to move"


@_says(e.PsLeft)
def _(event: e.PsLeft) -> str:
    return f"{event.worker} has left: {event.why}"


@_says(e.SlotsMoved)
def _(event: e.SlotsMoved) -> str:
    return (
        f"{_count(event.moved, 'slot')} moved and {_count(event.copied, 'backup')} made in"
        f" {event.seconds:.1f} s"
    )


@_says(e.SlotsRestored)
def _(event: e.SlotsRestored) -> str:
    how = "begin with the initial values" if event.fresh else "were restored"
    return f"slots {event.slots} {how} at {event.worker}{f' ({event.rejected})' if event.rejected else ''}"


@_says(e.SlotsUnrestored)
def _(event: e.SlotsUnrestored) -> str:
    return f"slot {event.slot} cannot be restored at {event.worker}: {event.why}"


@_says(e.SlotsRewound)
def _(event: e.SlotsRewound) -> str:
    return f"all slots go back to checkpoint {event.checkpoint}: what was done since is done again"


@_says(e.SlotsUnsaved)
def _(event: e.SlotsUnsaved) -> str:
    return f"{event.worker} cannot write snapshots, and tries again: {event.why}"


@_says(e.SlotsCheckpointed)
def _(event: e.SlotsCheckpointed) -> str:
    beside = f", beside parts of {_count(event.surplus, 'other')}" if event.surplus else ""
    return f"checkpoint {event.checkpoint} has {_count(event.tasks, 'task')}{beside}"


@_says(e.TasksReopened)
def _(event: e.TasksReopened) -> str:
    return (
        f"{_count(event.count, 'task')} of epoch {event.epoch} of {event.dataset}, from {event.first} on, are"
        f" done again: slot {event.slot} lost them"
    )


@_says(e.TaskLeftParts)
def _(event: e.TaskLeftParts) -> str:
    kept = f"{_count(event.slots, 'slot')} of the model" if event.slots else "no slot"
    return f"task {event.index} of epoch {event.epoch} of {event.dataset} failed; {kept} had applied it"


@_says(e.NonFiniteGradient)
def _(event: e.NonFiniteGradient) -> str:
    return f"task {event.index} of epoch {event.epoch} of {event.dataset}: {event.error}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
