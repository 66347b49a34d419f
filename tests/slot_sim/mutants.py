"""Plants realistic bugs into what slots are decided with, one at a time, and hunts them (see `sim.planting`).

python -m slot_sim.mutants                all of them, with a table
python -m slot_sim.mutants --only NAME    one of them

Those of a parameter server are planted into its model, which has the same rules.
"""

from __future__ import annotations

import typer

from sim import planting
from sim.planting import Mutant

SEEDS_MAX = 600
SLOTS = "elastane_slots"
DECISIONS = "elastane_master.decisions.slots"
PS = "slot_sim.ps_model"
DRAWN = "slot_sim.simulation"

MUTANTS = (
    Mutant(
        "names are not looked at",
        f"{SLOTS}.held_slots",
        "        if applied:\n            return Verdict.APPLIED_BEFORE, 0\n",
        "",
    ),
    Mutant(
        "a restored slot is served before its tasks are open again",
        f"{DECISIONS}.restoring",
        "        runs = list(missing(done_tasks(name, queue), applied))\n",
        "        runs = list(missing(done_tasks(name, queue), applied))[:0]\n",
    ),
    Mutant(
        "answers of an earlier life make a task DONE",
        f"{DECISIONS}.leasing",
        "    if report.lives_sum != book.map.lives_sum or ",
        "    if report.lives_sum > book.map.lives_sum or ",
    ),
    Mutant(
        "pushes of leases that are fenced out are applied",
        f"{SLOTS}.held_slots",
        "if push.lease <= record.fence or (pulled is not None and pulled.life != record.life):",
        "if pulled is not None and pulled.life != record.life:",
        drawn_by=DRAWN,
        fits=lambda plan: plan.leaves and plan.limit in (0, 1),
    ),
    Mutant(
        "leases from before a restore are not fenced out",
        f"{SLOTS}.slot_map",
        "return SlotPlace(owner, life=life, fence=lease, since",
        "return SlotPlace(owner, life=life, fence=place.fence, since",
        drawn_by=DRAWN,
        fits=lambda plan: (
            plan.favourite == "owner killed where a second lease is pushed"
            and plan.copies == 1
            and plan.slow
            and plan.workers > 1
            and plan.limit in (0, 1)
        ),
    ),
    Mutant(
        "fresh tasks are leased without room",
        f"{DECISIONS}.leasing",
        "    return 0 if _drains(book) else book.gate.room()\n",
        "    return None\n",
    ),
    Mutant(
        "ended leases are forgotten and not fenced out",
        f"{DECISIONS}.leasing",
        "    book.map = book.map.fenced(last)\n",
        "",
    ),
    Mutant(
        "FAILED tasks are over when the first slot has closed them",
        f"{DECISIONS}.closing",
        "        if closing is None or len(closing.applied) < len(book.map.places):\n",
        "        if closing is None or not closing.applied:\n",
    ),
    Mutant(
        "tasks that a checkpoint does not wait for are pushed while it is made",
        f"{DECISIONS}.checkpoints",
        "        if book.gate.returned:\n            # Before",
        "        if False:\n            # Before",
        drawn_by=DRAWN,
        fits=lambda plan: plan.favourite == "workers frozen while a checkpoint waits",
    ),
    Mutant(
        "workers are told of the end before the slots are saved",
        f"{DECISIONS}.finishing",
        "        if not ctx.state.settings.checkpoint_url or not queue.num_tasks:\n",
        "        if True:\n",
    ),
    Mutant(
        "answers do not wait for backups",
        PS,
        "in self.copies.items() if copy.acked < copy.sent]",
        "in self.copies.items() if not copy]",
    ),
    Mutant(
        "a slot moves without its set",
        PS,
        "            self.others[slot] = Held(decoded, list(names))\n",
        "            self.others[slot] = Held(SlotRecord(decoded.life, decoded.fence), list(names))\n",
    ),
    Mutant(
        "a slot that moves applies on",
        PS,
        "            held.record.frozen = True\n        else:",
        "            held.record.frozen = False\n        else:",
    ),
    Mutant(
        "a slot moves before its backup has all of it",
        PS,
        "        held.when(barrier, send)\n",
        "        send(True)\n",
        drawn_by=DRAWN,
        fits=lambda plan: plan.favourite == "push lost for a backup whose slot moves",
    ),
    Mutant(
        "a late copy is taken",
        PS,
        "if (place.owner, wanted, place.begun) == (owner.name, self.name, begun) and slot not in self.owned:",
        "if slot not in self.owned:",
    ),
    Mutant(
        "a backup takes pushes from who is not the owner any more",
        PS,
        "applied = held is not None and place.owner == owner.name and change(held)",
        "applied = held is not None and change(held)",
        drawn_by=DRAWN,
        fits=lambda plan: plan.favourite == "owner and workers cut off from the master",
    ),
    Mutant(
        "a snapshot is read twice in a life",
        PS,
        "        if self.read.get(slot) == (place.life, place.since):\n            return\n",
        "",
    ),
    Mutant(
        "closed tasks are not closed in backups",
        PS,
        "            applied = [held.record.close(name) for name in names]\n"
        "            self._to_copies(slot, held, change)\n",
        "            applied = [held.record.close(name) for name in names]\n",
        drawn_by=DRAWN,
        fits=lambda plan: (
            plan.copies == 2 and not plan.gentle and plan.attempts == 2 and plan.slow and plan.limit != 0
        ),
    ),
    Mutant(
        "an owner unfreezes by itself",
        PS,
        "            if version < 0:\n",
        "            held.record.frozen = False\n            if version < 0:\n",
    ),
    Mutant(
        "weights and set of a snapshot are of two moments",
        PS,
        "            image = Image(life, version, since, self.token.decode(), record, names)\n",
        "            image = Image(life, version, since, self.token.decode(), record, tuple(held.names))\n",
        drawn_by=DRAWN,
        fits=lambda plan: plan.copies == 2,
    ),
    Mutant(
        "a slot that is lacking begins empty",
        PS,
        "                self.checkers.lacks(self.name, slot)\n"
        "                self.kill()\n"
        "                return\n",
        "                held = Held(SlotRecord(place.life, place.fence, place.since), [])\n",
        # The master gives up who comes back without a slot, so that nobody is told to serve what it lacks.
        also=(
            Mutant(
                "nobody looks whether who returns has its slots",
                f"{DECISIONS}.processes",
                "    if record is not None and (lacking := _lacking(book, event)):\n",
                "    if record is not None and (lacking := _lacking(book, event)[:0]):\n",
            ),
        ),
        drawn_by=DRAWN,
        fits=lambda plan: plan.favourite == "store lost a move whose target is killed",
    ),
    Mutant(
        "who drains as a backup waits for another that there is not",
        f"{DECISIONS}.copies",
        "    _release_backups(ctx)\n",
        "",
    ),
    Mutant(
        "who drains leaves while slots are on their way to it",
        PS,
        "        if self.welcomed and (nothing or (alone and not copies)):\n",
        "        if self.welcomed and (nothing or alone):\n",
        drawn_by=DRAWN,
        fits=lambda plan: plan.together,
    ),
    Mutant(
        "a slot that was never saved is not begun anew",
        f"{DECISIONS}.restoring",
        "    was_saved = event.slot in book.snapshots or bool(book.finished)\n",
        "    was_saved = True\n",
    ),
    Mutant(
        "late news of an earlier copy is taken",
        f"{SLOTS}.slot_map",
        "        if process not in (place.target, place.joining) or not process or begun != place.begun:\n",
        "        if process not in (place.target, place.joining) or not process:\n",
        drawn_by=DRAWN,
        fits=lambda plan: plan.favourite == "new owner cut off and old one killed",
    ),
    Mutant(
        "returned tasks wait for room",
        "elastane_shards.dynamic",
        "            while len(leases) < max_tasks and (taken",
        "            most = max_tasks if fresh_max is None else min(max_tasks, fresh_max)\n"
        "            while len(leases) < most and (taken",
    ),
)


main = planting.command(MUTANTS, "slot_sim.mutants", "slot_sim.simulation", SEEDS_MAX)

if __name__ == "__main__":
    typer.run(main)
