"""One seeded run: a job under faults, then calm; then it must have finished, with the fixed run's bits."""

from __future__ import annotations

import random
from dataclasses import dataclass

from elastane_master.decisions.events import JobSettings
from elastane_master.decisions.machine import JobMachine
from sim.checkers import Checkers
from sim.faults import Cluster
from sim.master_model import MasterModel
from sim.reference import FixedRuns
from sim.task_client import EPOCHS, TASKS, TaskClient
from sim.worker_model import Script
from sim.world import SimulationError, World

FAULTS_SECONDS = 15.0
CALM_SECONDS = 600.0
EVENTS_MAX = 300_000


@dataclass
class Outcome:
    """What a run shows afterwards."""

    checkers: Checkers
    world: World
    generations: int


def simulate(seed: int) -> Outcome:
    """Runs one seed. Raises SimulationError with the seed and the end of the trace."""
    rng = random.Random(seed)
    script, settings = _draw(rng)
    world = World(rng)
    checkers = Checkers(script.ests, script.steps, FixedRuns(script.ests, script.steps))
    master = MasterModel(world, checkers, JobMachine.create("job", settings, world.now))
    cluster = Cluster(world, master, script, world.now + FAULTS_SECONDS, rng.choice((0.3, 1.0, 4.0)))
    master.usable_holders = cluster.usable_holders
    clients = [TaskClient(world, master, f"t{number}") for number in range(rng.choice((0, 0, 1, 3)))]

    def is_through() -> bool:
        return cluster.is_over and all(client.is_through for client in clients)

    try:
        master.start()
        cluster.begin(rng.randint(1, script.ests + 1))
        for client in clients:
            client.start()
        if not world.run_until(is_through, cluster.faults_until + CALM_SECONDS, EVENTS_MAX):
            state = master.machine.state
            raise SimulationError(f"the job did not finish: {state.phase}, {state.reason}")
        world.run_until(lambda: not master.queue, world.now + 60.0, EVENTS_MAX)
        master.check_replay()
        checkers.finished(EPOCHS * TASKS if clients else 0)
    except (SimulationError, AssertionError, LookupError, ValueError) as error:
        trace = "\n".join(world.trace[-150:])
        raise SimulationError(f"seed {seed}: {error}\n{trace}") from error
    return Outcome(checkers, world, master.machine.state.ring.generation)


def _draw(rng: random.Random) -> tuple[Script, JobSettings]:
    """A script and settings, small enough for a run of milliseconds."""
    ests = rng.randint(1, 6)
    seconds = rng.choice((0.05, 0.2, 0.5)), rng.choice((0.2, 3.0))
    script = Script(ests, rng.randint(2, 12), rng.randint(1, 4), *seconds)
    workers_min = rng.choice((1, 1, min(2, ests)))
    checkpoint_url = rng.choice(("", "memory://x", "memory://x"))
    settings = JobSettings(
        ests=ests,
        workers_min=workers_min,
        workers_max=rng.choice((0, 0, rng.randint(workers_min, ests + 1))),
        checkpoint_url=checkpoint_url,
        checkpoint_interval_steps=rng.choice((0, 1, 3)) if checkpoint_url else 0,
        lease_min_seconds=rng.choice((2.0, 5.0)),
        return_grace_seconds=rng.choice((1.0, 4.0)),
        idle_max_seconds=60.0,
    )
    return script, settings
