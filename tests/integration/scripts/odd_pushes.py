"""The built-in job of `elastane chaos --ps`, in a worker that is odd at the moment between push and report.

hasty: a task is reported as done, and pushed afterwards. late: it is reported long after it was pushed, as is
allowed: most of its deaths are between the two.
"""

import sys
import threading
import time

from elastane.slots.access import PushedTask, PushOutcome
from elastane.slots.slot_client import SlotClient
from elastane_cli.chaos.ps_job import main

_honest = SlotClient.push
#: Longer than the report takes.
ODD_SECONDS = 0.3


def _hasty(self: SlotClient, task: PushedTask) -> PushOutcome:
    threading.Timer(ODD_SECONDS, _honest, (self, task)).start()
    return PushOutcome("done", lives_sum=self._watch.newest.map.lives_sum)


def _late(self: SlotClient, task: PushedTask) -> PushOutcome:
    outcome = _honest(self, task)
    time.sleep(ODD_SECONDS)
    return outcome


SlotClient.push = {"hasty": _hasty, "late": _late}[sys.argv.pop(1)]  # type: ignore[method-assign]
main()
