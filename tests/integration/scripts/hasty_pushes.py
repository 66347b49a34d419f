"""The built-in job of `elastane chaos --ps`, in a worker that reports a task as done before it is pushed."""

import threading

from elastane.slots.access import PushedTask, PushOutcome
from elastane.slots.slot_client import SlotClient
from elastane_cli.chaos.ps_job import main

_honest = SlotClient.push
#: Longer than the report takes.
LATE_SECONDS = 0.3


def _push(self: SlotClient, task: PushedTask) -> PushOutcome:
    late = threading.Timer(LATE_SECONDS, _honest, (self, task))
    late.start()
    return PushOutcome("done", lives_sum=self._watch.newest.map.lives_sum)


SlotClient.push = _push  # type: ignore[method-assign]
main()
