"""Carries out what was confirmed on the screen: a call to the master for each action, in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from elastane_cli.screen.actions import Action, Drain, Scale
from elastane_cli.screen.view import Notice
from elastane_common.errors import ElastaneError, MasterUnreachableError

if TYPE_CHECKING:
    from elastane_common.client import MasterClient

_NO_RIGHT = ("permission_denied", "unauthenticated")


class Operator:
    """Sends the actions to the master.

    connect: creates a client; a checkpoint may take minutes, so each action has its own. answered: called
    from the action's thread with what the master answered.
    """

    def __init__(self, connect: Callable[[], MasterClient], answered: Callable[[Notice], None]) -> None:
        self._connect = connect
        self._answered = answered

    def begin(self, action: Action) -> None:
        """Send an action, and return at once. What is still on its way when the command ends stays sent."""
        threading.Thread(target=self._run, args=(action,), name="elastane-top-action", daemon=True).start()

    def _run(self, action: Action) -> None:
        try:
            with self._connect() as client:
                notice = Notice(perform(client, action))
        except ElastaneError as error:
            notice = Notice(refusal_words(error), fault=True)
        self._answered(notice)


def perform(client: MasterClient, action: Action) -> str:
    """Ask the master, and return its answer in words. Raises the client's errors."""
    if isinstance(action, Drain):
        client.drain_worker(action.job, action.worker)
        return f"{action.worker} leaves at the next step boundary"
    if isinstance(action, Scale):
        settings = client.scale_job(action.job, action.workers_min, action.workers_max).settings
        by_itself = ", of which the master chooses" if settings.scaling else ""
        return f"{action.job}: scaled to {settings.workers_min}:{settings.workers_max} workers{by_itself}"
    saved = client.checkpoint_job(action.job)
    return f"{action.job}: saved at step {saved.step}: {saved.url}"


def refusal_words(error: ElastaneError) -> str:
    """Return why an action did not happen, with the hint, in one line's words."""
    message = str(error.args[0]) if error.args else type(error).__name__
    if isinstance(error, MasterUnreachableError):
        return f"no answer: {message}"
    no_right = getattr(error, "reason", "") in _NO_RIGHT
    what = "no right to do this" if no_right else "refused"
    return f"{what}: {message}" + (f" ({error.hint})" if error.hint else "")
