"""A signal whose exception cannot be raised where it arrives ends the command all the same."""

from __future__ import annotations

import signal
import sys

import pytest

import patience

COMMAND = """
import signal, sys, threading
import typer
from elastane_cli.commands import main as cli
from elastane_cli.commands.signals import sigterm_cleans_up

class Dies:
    def __del__(self):
        signal.raise_signal({number})

def command():
    with sigterm_cleans_up():
        dies = Dies()
        del dies  # the handler's exception is ignored here
        if not threading.Event().wait(20):
            sys.exit("the signal was lost")

app = typer.Typer(pretty_exceptions_enable=False)
app.callback()(lambda: None)
app.command("x")(command)
cli.build_app = lambda: app
cli.main(["x"])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_arrives_in_a_finalizer_is_not_lost(number: signal.Signals, code: int) -> None:
    ran = patience.run(
        [sys.executable, "-c", COMMAND.format(number=int(number))], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stderr) == (code, "")
