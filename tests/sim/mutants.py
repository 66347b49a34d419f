"""Plants realistic bugs into the code, one at a time, and checks that the simulation finds them.

make sim-mutants                     all of them, with a table
python -m sim.mutants --only NAME    one of them
"""

from __future__ import annotations

import typer

from sim import planting
from sim.planting import Mutant

SEEDS_MAX = 1000

DECISIONS = "elastane_master.decisions"
PIPELINES = "sim.pipelines"
FOLLOWING = "sim.following"
AHEAD = "sim.ahead"
FEED = "elastane.runtime.feed_book"
MUTANTS = (
    Mutant(
        "members of a pipeline are not told to apply what is prepared",
        f"{DECISIONS}.messages",
        "state.steps.current if applies else None",
        "None",
        drawn_by=PIPELINES,
    ),
    Mutant(
        "members of a pipeline are told to apply what is not prepared",
        f"{DECISIONS}.messages",
        "state.steps.current if applies else None",
        "state.steps.current + 1 if applies else None",
        drawn_by=PIPELINES,
    ),
    Mutant(
        "a member of a pipeline is ready before it has applied what is prepared",
        "elastane.runtime.protocol",
        "return self.replacing or self.attempts.newest.delays_ready or self.attempts.finishes",
        "return self.replacing or self.attempts.newest.delays_ready",
        drawn_by=PIPELINES,
    ),
    Mutant(
        "a member of a pipeline applies what it has reported, prepared or not",
        "elastane.runtime.step_attempts",
        "is_prepared = self.newest.step < self.applies_until",
        "is_prepared = self.applies_until > 0",
        drawn_by=PIPELINES,
    ),
    Mutant(
        "a member of a pipeline that returns is not told to apply what is prepared",
        f"{DECISIONS}.absent_holders",
        "    return state.steps.current\n",
        "    return None\n",
        drawn_by=PIPELINES,
    ),
    Mutant(
        "a member of a pipeline that returns applies what it has reported, prepared or not",
        "elastane.runtime.protocol",
        'finishes = message.HasField("prepared_until") and self.may_finish',
        "finishes = self.may_finish",
        (
            (
                "                self.attempts.applies_until = message.prepared_until",
                "                self.attempts.applies_until = 10**6",
            ),
        ),
        drawn_by=PIPELINES,
    ),
    Mutant(
        "nobody waits for units whose holder's stream has broken",
        f"{DECISIONS}.absent_holders",
        "    if not workers:\n        return False\n",
        "    return False\n",
        drawn_by=PIPELINES,
    ),
    Mutant(
        "a ring goes on without a unit that nobody holds",
        f"{DECISIONS}.ring",
        "return step < 0 or (state.unit_count > 0 and bool(unit_holders.missing(state, step)))",
        "return step < 0",
        drawn_by=PIPELINES,
    ),
    Mutant(
        "units count as held whatever a Ready says",
        f"{DECISIONS}.held_state",
        "    record.units = units if record.holds_state else ()\n",
        "",
        drawn_by=PIPELINES,
    ),
    Mutant(
        "units count as held at whatever step",
        f"{DECISIONS}.unit_holders",
        "        if record.holds_state and record.applied_step == step:\n            for unit",
        "        if record.units:\n            for unit",
        (
            (
                "        if record.holds_state and record.applied_step == step\n        for unit",
                "        for unit",
            ),
        ),
        drawn_by=PIPELINES,
    ),
    Mutant(
        "who alone holds units of a pipeline leaves at once",
        f"{DECISIONS}.assignment",
        "if chosen and any(candidate.units for candidate in candidates):",
        "if False:",
        drawn_by=PIPELINES,
    ),
    Mutant(
        "a plan made before is taken whoever is in the ring",
        f"{DECISIONS}.stage_plans",
        "if plan.workers != asked.workers or not _named(plan) <= set(plan.workers):\n        return False",
        "if False:\n        return False",
        drawn_by=PIPELINES,
    ),
    Mutant(
        "units that share parameters are cut apart",
        f"{DECISIONS}.stage_plans",
        "cuts, starts = list(profile.cuts), [0]",
        "cuts, starts = list(range(1, len(profile.units))), [0]",
        drawn_by=PIPELINES,
    ),
    Mutant(
        "a step that was applied ahead and is lost is not undone",
        "sim.worker_model",
        "        self.weights = self._before\n",
        "",
        drawn_by=AHEAD,
    ),
    Mutant(
        "a report is sent though the step before it is ahead",
        "elastane.runtime.step_attempts",
        "        if self.ahead is None:\n            return False\n        self.newest.hold",
        "        if True:\n            return False\n        self.newest.hold",
        drawn_by=AHEAD,
    ),
    Mutant(
        "Ready says that a step is applied that is ahead",
        "elastane.runtime.protocol",
        "generation=self.fenced, applied_step=self.applied_step, holds_state",
        "generation=self.fenced, applied_step=self.next_step, holds_state",
        drawn_by=AHEAD,
    ),
    Mutant(
        "a planned change does not wait for members that go ahead",
        f"{DECISIONS}.step_boundary",
        "    if goes_ahead:\n",
        "    if False:\n",
        drawn_by=AHEAD,
    ),
    Mutant(
        "members are not told to wait for a planned change",
        f"{DECISIONS}.messages",
        "not changing and (steps.change_waits or steps.hold or ",
        "not changing and (",
        drawn_by=AHEAD,
    ),
    Mutant(
        "a step goes ahead whose report has not said so",
        "elastane.runtime.protocol",
        "if not self.attempts.newest.may_go_ahead or not self.may_go_ahead(step):",
        "if not self.may_go_ahead(step):",
        drawn_by=AHEAD,
    ),
    Mutant(
        "a dropped step is charged as useful",
        f"{DECISIONS}.cost",
        "    _replay(state.cost, state.cost.boundary[1])\n",
        "    pass\n",
    ),
    Mutant(
        "steps that history goes back behind are charged as useful",
        f"{DECISIONS}.cost",
        "        _replay(book, _working_at(book, step))\n",
        "        pass\n",
    ),
    Mutant(
        "a worker that is gone is charged on",
        f"{DECISIONS}.cost",
        ".add(record.capacity, record.device_type, -1)\n\n\ndef ring_key",
        ".add(record.capacity, record.device_type, 0)\n\n\ndef ring_key",
    ),
    Mutant(
        "new prices hold for the time before them too",
        f"{DECISIONS}.operators",
        "    cost.charge(state, ctx.now)\n",
        "",
    ),
    Mutant(
        "fixed recovery trains with fewer workers",
        f"{DECISIONS}.state",
        'if settings.recovery == "fixed":',
        "if False:",
    ),
    Mutant(
        "nobody looks whether the wait is over",
        f"{DECISIONS}.deadlines",
        "        deadlines.append(state.wait_until)\n",
        "",
    ),
    Mutant(
        "messages leave before they are durable",
        "elastane_master.jobs.durable_server",
        "if not self._outbox and self.log.durable >= self.log.appended:",
        "if True:",
    ),
    Mutant(
        "an answer leaves before it is durable",
        "elastane_master.jobs.durable_server",
        "        return decision.result, self.log.pending\n",
        "        return decision.result, None\n",
    ),
    Mutant(
        "a refusal rests on a state that may be old",
        "elastane_master.jobs.durable_server",
        """        except Rejection:
            await self.confirm()
            raise
        if durable""",
        """        except Rejection:
            raise
        if durable""",
    ),
    Mutant(
        "a stopping master still decides",
        "elastane_master.jobs.durable_server",
        "if self.stopping:\n            # The last",
        "if False:\n            # The last",
    ),
    Mutant(
        "a fenced master keeps writing",
        "elastane_master.store.fenced_scripts",
        "if holder > token then return",
        "if false then return",
    ),
    Mutant(
        "a store that lost the token fences its own master",
        "elastane_master.store.fenced_scripts",
        "if holder > token then return",
        "if holder ~= token then return",
    ),
    Mutant(
        "commits that the store lost are not written again",
        "elastane_master.store.log",
        "lost = self._kept.beyond(commit, event)",
        "lost = self._kept.beyond(self._commit, self._event)",
    ),
    Mutant(
        "the first record after a snapshot is not replayed",
        "elastane_master.store.wholeness",
        "whole.records.extend(records)",
        "whole.records.extend(records if whole.records else records[1:])",
    ),
    Mutant(
        "a master serves what it read while another one wrote",
        "elastane_master.store.recovery",
        "if holder > token:",
        "if False:",
    ),
    Mutant(
        "a stale task report counts",
        "elastane_shards.dynamic",
        "if held.attempt != attempt or held.worker != worker:",
        "if False:",
    ),
    Mutant(
        "a task that is done can be done again",
        "elastane_shards.dynamic",
        """            waiting = tasks.requeued.get(index)
            if waiting is None or error or attempt > waiting.attempt:
                return Outcome.STALE
        tasks.finish(index)""",
        """            if error:
                return Outcome.STALE
        if index in tasks.doing or index in tasks.requeued:
            tasks.finish(index)""",
    ),
    Mutant(
        "a lease that ran out is forgotten",
        "elastane_shards.dynamic",
        "self._tasks_of(epoch).put_back(indices)",
        "self._tasks_of(epoch).put_back(indices[1:])",
    ),
    Mutant(
        "a task that comes back goes to the tail",
        "elastane_shards.epoch",
        "self.take_returned(worker, deadline) or self.take_fresh(worker, deadline, rng, num_tasks)",
        "self.take_fresh(worker, deadline, rng, num_tasks) or self.take_returned(worker, deadline)",
    ),
    Mutant(
        "a task that comes back has new random states",
        "elastane_shards.epoch",
        "        held.worker = worker\n",
        "        held.worker, held.rng = worker, {}\n",
    ),
    Mutant(
        "a dataset is called complete while tasks are leased",
        "elastane_shards.dynamic",
        "and self._splitter.closed\n            and self._tasks.finished ==",
        "and self._splitter.closed\n            and self._tasks.finished + len(self._tasks.doing) ==",
    ),
    Mutant(
        "a Ready of an older ring counts",
        f"{DECISIONS}.ring",
        "if event.generation < ring.generation:\n        if record.unanswered",
        "if record.ready_generation == ring.generation:\n        if record.unanswered",
        (
            (
                "record.ready_generation, record.unanswered_since = event.generation, None\n",
                "record.ready_generation, record.unanswered_since = ring.generation, None\n",
            ),
        ),
    ),
    # Streams are in order: no Go comes after a newer ring's Prepare. But one may be being carried out then.
    Mutant(
        "a Go of an older ring counts",
        "elastane.runtime.protocol",
        "        if not self.stands(generation):\n            return False\n        self.replacing = True\n",
        "        self.replacing = True\n",
    ),
    Mutant(
        "a step is prepared when one member is missing",
        f"{DECISIONS}.step_boundary",
        "book.reported_ranks() < state.settings.ests",
        "book.reported_ranks() < state.settings.ests - 1",
    ),
    Mutant(
        "a step is committed when the first member has applied it",
        f"{DECISIONS}.ring",
        "everywhere = min(applied, default=-1)",
        "everywhere = max(applied, default=-1)",
        (("if ring.stage is not Stage.RUNNING or _held_up(state):", "if ring.stage is not Stage.RUNNING:"),),
    ),
    Mutant(
        "the resume step is the lowest of the members'",
        f"{DECISIONS}.ring",
        "return max(whole or steps, default=-1)",
        "return min((step for step in steps if step >= 0), default=-1)",
    ),
    Mutant(
        "Go carries the contexts of another step",
        f"{DECISIONS}.messages",
        "state.contexts.ranks(ring.resume_step, member.start, member.end)",
        "state.contexts.ranks(min(state.contexts.steps), member.start, member.end)",
    ),
    Mutant(
        "Go does not say what the code between epochs drew",
        f"{DECISIONS}.messages",
        "return IntervalDecided(state.ring.generation, step, interval.changes)",
        "return None",
    ),
    Mutant(
        "the code between epochs is counted again in contexts that include it",
        "elastane.runtime.hosted_contexts",
        "        if not _is_behind(context, decided.step):\n",
        "        if True:\n",
    ),
    Mutant(
        "contexts after the code between epochs are reported without its draws",
        "elastane.runtime.hosted_contexts",
        "rank: EstContext(rank, context.step, {}) if _is_behind(context, step) else context",
        "rank: context",
    ),
    Mutant(
        "a generator's position is reported in words that the master does not have",
        "elastane.runtime.hosted_contexts",
        "_delta(self.known[rank], context) if positions",
        "_delta(self.now[rank], context) if positions",
    ),
    Mutant(
        "words that have changed are left out of a report, and nobody compares",
        "elastane_proto.generator_positions",
        " == size or before[start:end] != after[start:end]:\n        return None\n",
        " == size:\n        return None\n",
        (("    if zlib.crc32(after) != position.checksum:\n", "    if not after:\n"),),
    ),
    Mutant(
        "what EST 0 alone draws between epochs counts for all",
        "elastane.runtime.interval_draws",
        "        self.anchor, self.fresh = states, {}\n        if 0 in self.whole:",
        "        self.fold(states)\n        if 0 in self.whole:",
    ),
    Mutant(
        "a checkpoint is saved before the code between epochs has run",
        "elastane.runtime.step_boundary",
        "            if not self._interval_is_open():\n                self._take_checkpoint()\n",
        "            self._take_checkpoint()\n",
    ),
    Mutant(
        "a process that has trained begins anew by itself",
        "elastane.runtime.step_boundary",
        "if restored is None and not self.pristine:",
        "if False:",
    ),
    Mutant(
        "an epoch begins before the leader has evaluated",
        f"{DECISIONS}.intervals",
        "    if state.lagging(lambda record: here.get(record.worker) != generation):\n        return\n",
        "",
    ),
    Mutant(
        "EST 0 is taken for the others where its leader is gone",
        f"{DECISIONS}.intervals",
        "    if not led and any(report.asked for report in reports.values()):",
        "    if False:",
    ),
    Mutant(
        "contexts are dropped when a step is prepared",
        f"{DECISIONS}.step_boundary",
        "    state.contexts.put(book.prepared + 1, contexts)\n",
        "    state.contexts.reset(book.prepared + 1, contexts)\n",
    ),
    # By its generation, and by the history that it names: each of them would be enough.
    Mutant(
        "held state of a history that was given up is believed",
        f"{DECISIONS}.held_state",
        "if event.generation < state.history_generation:",
        "if False:",
        (("if event.history_generation not in (0, state.history_generation):", "if False:"),),
    ),
    Mutant(
        "a change goes ahead before all are ready",
        f"{DECISIONS}.ring",
        "    if not all_ready(state):\n        return\n",
        "    if len(unready(state)) > 1:\n        return\n",
    ),
    Mutant(
        "history is given up before everybody was asked",
        f"{DECISIONS}.ring",
        "    if members or (has_state and not state.steps.catching_up):\n",
        "    if True:\n",
    ),
    Mutant(
        "a ring goes ahead although a member was lost while it loaded",
        f"{DECISIONS}.ring",
        "    if not ring.put_off:\n        _go(ctx, event.step, event.checkpoint)",
        "    _go(ctx, event.step, event.checkpoint)",
    ),
    Mutant(
        "the clock of a new master is its machine's",
        "elastane_master.jobs.job_opening",
        "self.clock.at_least(machine.state.decided_at)",
        "pass",
    ),
    Mutant(
        "a script that ended in an older history counts",
        f"{DECISIONS}.sessions",
        "if held_state.is_fenced(state, event.worker, event.applied_step):\n        return False",
        "return True",
    ),
    Mutant(
        "a checkpoint that the history does not lead up to is loaded",
        f"{DECISIONS}.forgotten",
        "    return state.steps.whole_until if begun else None\n",
        "    return None\n",
    ),
    Mutant(
        "a step is applied without Prepared",
        "elastane.runtime.protocol",
        "return not self.changing and self.attempts.prepared_until > step",
        "return not self.changing",
    ),
    # Of a worker's own, once it knows the next one: no master sends another. It may be held when that comes.
    Mutant(
        "Prepared of another generation counts",
        "elastane.runtime.protocol",
        "if is_late or self.attempts.explain_later is not None:",
        "if False:",
        (
            (
                "return not self.changing and self.attempts.prepared_until > step",
                "return self.attempts.prepared_until > step",
            ),
        ),
    ),
    Mutant(
        "Ready is said while the optimizer is at work",
        "elastane.runtime.protocol",
        "send = [] if self._ready_waits else [self._ready()]",
        "send = [self._ready()]",
    ),
    Mutant(
        "what a leader loaded for an older ring is taken for the job's",
        "elastane.runtime.protocol",
        "self.holds_state = message.generation == self.fenced",
        "self.holds_state = True",
    ),
    Mutant(
        "a leader claims what it has loaded before a Go confirms it",
        "elastane.runtime.protocol",
        "holds_state=self.holds_state and not self.unconfirmed,",
        "holds_state=self.holds_state,",
    ),
    Mutant(
        "Prepare of the ring that a worker is in fences it again",
        "elastane.runtime.protocol",
        "if message.generation == self.fenced:  # an echo, after a reconnect",
        "if message.generation == self.fenced > self.generation:",
    ),
    Mutant(
        "a master that does not know the job is believed at once",
        "elastane.runtime.session_machine",
        'return self._job_not_found(now) if event.code == "NOT_FOUND" else self._refused()',
        "return self._refused()",
    ),
    Mutant(
        "a master that does not lead is believed that there is no job",
        "elastane.runtime.session_machine",
        "return self._refused() if leads else self._ask_again()",
        "return self._refused()",
    ),
    Mutant(
        "a standby master's answer ends the session",
        "elastane.runtime.session_machine",
        "return ended.code in PERMANENT_CODES",
        'return ended.code in PERMANENT_CODES or ended.reason == "NOT_LEADING"',
    ),
    Mutant(
        "a takeover that did not come to its end counts",
        "elastane_master.jobs.succession_keeper",
        'if step == "lead" and not await self._follower.lead():',
        'if step == "lead" and not (await self._follower.lead() or True):',
    ),
    Mutant(
        "the lease is counted from the answer and not from the question",
        "elastane_master.jobs.succession_keeper",
        "self._decide(Held(reply.token, now))",
        "self._decide(Held(reply.token, time.monotonic()))",
    ),
    Mutant(
        "a leader answers although its lease ran out, as long as it is not told",
        "elastane_master.jobs.leading",
        'if state.role == "leading" and time.monotonic() - state.renewed_at <= state.lease_seconds:',
        'if state.role == "leading":',
    ),
    Mutant(
        "a record counts although the job was written to since",
        "elastane_master.store.closed",
        "elseif fence[4] and fence[4] == fence[3] then how = 'closed' end",
        "elseif fence[4] then how = 'closed' end",
        (
            (
                "if not fence[2] or fence[1] ~= fence[2] then return '' end",
                "if not fence[2] then return '' end",
            ),
        ),
    ),
    Mutant(
        "a job is taken off the list before what is stored of it is deleted",
        "elastane_master.jobs.finished_jobs",
        "        with self._fenced_steps_down():\n"
        "            await self.records.delete(closed.name, closed.stored.token, request_id)\n"
        "        self._require_serving()  # a new leader took it off the list, and may have recreated it\n"
        "        await self._store.remove_job(closed.name)\n",
        "        await self._store.remove_job(closed.name)\n"
        "        with self._fenced_steps_down():\n"
        "            await self.records.delete(closed.name, closed.stored.token, request_id)\n",
    ),
    Mutant(
        "a closed job is opened although its deletion may have happened",
        "elastane_master.jobs.finished_jobs",
        "if (request_id := self._deleting.get(name)) is not None:",
        "if (request_id := None) is not None:",
    ),
    Mutant(
        "a closed job that is opened again is still answered from its record",
        "elastane_master.jobs.finished_jobs",
        "        del self._table.closed[name]\n        server = self._opening.server(",
        "        server = self._opening.server(",
    ),
    Mutant(
        "a finished job is closed although somebody came while the store was asked",
        "elastane_master.jobs.finished_jobs",
        "if unused_seconds is not None and not server.is_unused(unused_seconds):",
        "if False:",
    ),
    Mutant(
        "a newcomer that follows joins a step behind",
        FEED,
        "        self.end_step = step\n        return True",
        "        self.end_step = step\n        self.waiting and self.waiting.pop()\n        return True",
        (("if calls != self.calls or step < self.step:", "if False:"),),
        drawn_by=FOLLOWING,
    ),
    Mutant(
        "the state is changed while it is copied for a newcomer",
        FEED,
        "return not self.reading or bool(self.failure)",
        "return True",
        drawn_by=FOLLOWING,
    ),
    Mutant(
        "a newcomer's copy is believed whatever its digest",
        f"{DECISIONS}.following",
        "if len(set(following.digests.values())) == 1:",
        "if True:",
        drawn_by=FOLLOWING,
        fits=lambda drawn: drawn == "differ",
    ),
    # It may then apply the step that was prepared in its old ring. If history begins anew meanwhile, what its
    # Hello claimed is rejected, and its Ready names a later step.
    Mutant(
        "an evicted worker goes on",
        "elastane.runtime.protocol",
        "        if not message.resumed or is_unread:\n            outcome = self.evict()",
        "        if not message.resumed or is_unread:\n            outcome = Outcome()",
    ),
)


def hunt_in_process(mutant: Mutant, seeds_max: int) -> dict[str, object]:
    """Hunt one with this simulation in a separate process. Raises RuntimeError if that process fails."""
    return planting.hunt_in_process(mutant, seeds_max, "sim.mutants")


main = planting.command(MUTANTS, "sim.mutants", "sim.simulation", SEEDS_MAX)


if __name__ == "__main__":
    typer.run(main)
