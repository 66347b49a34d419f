"""Bugs that are planted into the training service's decisions, one at a time: the simulation must find each.

make service-mutants                          all, with a table
python -m service_sim.mutants --only NAME     one of them
"""

from __future__ import annotations

import typer

from sim import planting
from sim.planting import Mutant

SEEDS_MAX = 1500
RUNS = "elastane_master.decisions.runs"
MUTANTS = (
    Mutant(
        "a new launch does not wait until the old one has stopped",
        f"{RUNS}.life",
        "if launch is None or launch.ending is None or launch.awaited:",
        "if launch is None or launch.ending is None:",
    ),
    Mutant(
        "a message of an older launch counts",
        f"{RUNS}.context",
        "if run is None or run.launch is None or run.launch.fence != fence:",
        "if run is None or run.launch is None:",
    ),
    Mutant(
        "a run that ends in the queue has no record",
        f"{RUNS}.life",
        "    if not recorded:\n",
        "    if not recorded and run.attempt:\n",
    ),
    Mutant(
        "records that are due are lost with the master",
        f"{RUNS}.machine",
        "        ctx.emit(WriteRecord(run_id))\n",
        "        pass\n",
    ),
    Mutant(
        "a gang starts when the first is prepared",
        f"{RUNS}.launch",
        'elif all(record.state == "prepared" for record in run.ranks):',
        'elif any(record.state == "prepared" for record in run.ranks):',
    ),
    Mutant(
        "a run has succeeded with its first instance",
        f"{RUNS}.ranks",
        'if all(one.state == "exited" and not one.exit_code for one in deciding):',
        'if any(one.state == "exited" and not one.exit_code for one in deciding):',
    ),
    Mutant(
        "slots are free as soon as a launch is asked to stop",
        f"{RUNS}.life",
        "                ctx.send(runner, stop_message(run, launch))\n",
        "                ctx.send(runner, stop_message(run, launch))\n"
        "                holdings.release(ctx, runner, launch.fence)\n",
    ),
    Mutant(
        "what a lost runner brings back takes no slots",
        f"{RUNS}.runners",
        "        holdings.hold_stale(ctx, runner, key.run_id, key.attempt, key.fence, slots, rank)\n",
        "        pass\n",
    ),
    Mutant(
        "a cancellation is outweighed by a lost runner",
        f"{RUNS}.life",
        '(outweighs and old.verdict != "cancelled")',
        '(outweighs or new.verdict == "suspended")',
    ),
    Mutant(
        "a lost runner costs an attempt",
        f"{RUNS}.life",
        '        case "suspended":\n            run.waiting_since = ctx.now\n',
        '        case "suspended":\n            run.attempt_open = False\n',
    ),
    Mutant(
        "a lease that ran out is not noticed",
        f"{RUNS}.runners",
        "(runner.lease_until, runner.paused_until)",
        "(runner.paused_until,)",
    ),
    Mutant(
        "a runner that returns is not asked for its launch again",
        f"{RUNS}.runners",
        "    if prepare:\n        launch.send_prepare(ctx, run, runner, prepare)\n",
        "",
    ),
    Mutant(
        "a Start that was lost with its stream is not sent again",
        f"{RUNS}.runners",
        "    if start:\n        launch.send_start(ctx, run, runner, start)\n",
        "",
    ),
    Mutant(
        "instances that a runner does not have any more are believed to run",
        f"{RUNS}.runners",
        'if not record.placed or record.state == "prepared":',
        'if not record.placed or record.state == "prepared" or status is None:',
    ),
    Mutant(
        "a returning runner's instances are stopped",
        f"{RUNS}.runners",
        "if run is None or run.launch is None or run.launch.attempt != key.attempt:",
        "if True:",
    ),
    Mutant(
        "a launch may take for ever",
        f"{RUNS}.launch",
        "if record.deadline_at is not None and record.deadline_at <= ctx.now and record.placed",
        "if False",
    ),
    Mutant(
        "a stop that is not answered is awaited for ever",
        f"{RUNS}.deadlines",
        "    late = [runner_id for runner_id, at in current.awaited.items() if at <= ctx.now]\n",
        "    late: list[str] = []\n",
    ),
    Mutant(
        "leases go on while the master is away",
        f"{RUNS}.runners",
        "        runner.lease_until = ctx.now + settings.lease_seconds\n",
        "        runner.lease_until = runner.heard_at + settings.lease_seconds\n",
    ),
    Mutant(
        "a repeated submission is a further run",
        f"{RUNS}.requests",
        '    known = _repeated(ctx, "submit", event.owner, event.request_id)\n',
        "    known = None\n",
    ),
    Mutant(
        "a job that was cancelled for a failure cancels its run",
        f"{RUNS}.ranks",
        '    if ours and event.phase == "cancelled":\n        return',
        "    if False:\n        return",
    ),
    Mutant(
        "nothing is reserved for who waits long",
        f"{RUNS}.index",
        "            if now - since < starvation_seconds:\n",
        "            if True:\n",
    ),
    Mutant(
        "a job whose creation was lost with the master is not created again",
        f"{RUNS}.machine",
        "            ctx.emit(CreateElasticJob(run_id, run.job))\n",
        "            pass\n",
    ),
    Mutant(
        "a job whose cancellation was lost with the master goes on",
        f"{RUNS}.machine",
        "        ctx.emit(CancelElasticJob(run_id, job))\n",
        "        pass\n",
    ),
    Mutant(
        "an instance that is placed elsewhere goes on where it was",
        f"{RUNS}.runners",
        '        launch.send_stop_rank(ctx, run, runner, rank, "it was given up")\n',
        "        pass\n",
    ),
    Mutant(
        "an instance counts where it was, although it is placed elsewhere",
        f"{RUNS}.launch",
        "    if not 0 <= rank < len(run.ranks) or run.ranks[rank].runner_id != runner.runner_id:\n",
        "    if not 0 <= rank < len(run.ranks):\n",
    ),
    Mutant(
        "a late word on the instance before is taken for the next one's end",
        f"{RUNS}.ranks",
        '    if record.state == "pending" and run.demand.elastic and run.launch.ending is None:\n',
        "    if False:\n",
    ),
    Mutant(
        "what lives where it was given up counts as running, beside its successor",
        f"{RUNS}.runners",
        "        holdings.hold_stale(\n"
        "            ctx, runner, run.run_id, current.attempt, fence, run.demand.slots_per_instance, rank\n"
        "        )\n",
        "        holdings.hold(ctx, runner, run, [rank])\n",
    ),
    Mutant(
        "what is given up with a lost runner is still charged",
        f"{RUNS}.runners",
        "    holdings.release_all(ctx, runner)\n",
        "    pass\n",
    ),
    Mutant(
        "a run that waits starts although there are no free slots",
        f"{RUNS}.queue",
        "if (usable := min(there, left.get(kind, 0)))",
        "if (usable := left.get(kind, 0))",
    ),
    Mutant(
        "a run that moves to another device type gives up what it needs",
        f"{RUNS}.reshaping",
        "_Least(len(run.ranks) - room, run.demand.instances_min)",
        "_Least(len(run.ranks) - room, 0)",
    ),
    Mutant(
        "old instances go before new ones run",
        f"{RUNS}.reshaping",
        '_Least(least, least), "the scheduling policy takes it back"',
        '_Least(least, 0), "the scheduling policy takes it back"',
    ),
    Mutant(
        "who has waited longest takes what others need",
        f"{RUNS}.reshaping",
        "    least, each = run.demand.instances_min,",
        "    least, each = 0,",
    ),
    Mutant(
        "owners are charged for what has ended",
        f"{RUNS}.holdings",
        "            holding.ranks.remove(rank)\n            _uncharge(ctx, holding, 1)\n        elif",
        "            holding.ranks.remove(rank)\n        elif",
    ),
)


def hunt_in_process(mutant: Mutant, seeds_max: int) -> dict[str, object]:
    """Hunt one with this simulation in a separate process. Raises RuntimeError if that process fails."""
    return planting.hunt_in_process(mutant, seeds_max, "service_sim.mutants")


main = planting.command(MUTANTS, "service_sim.mutants", "service_sim.simulation", SEEDS_MAX)


if __name__ == "__main__":
    typer.run(main)
