"""The catalogue of commands with their summaries; a command's module is imported only when it is used.

To add a command, write a module with `register(app)` and add an entry here, in the order in which `elastane
--help` shows them. The entry repeats the first paragraph of the help; a test checks that they match.
"""

from __future__ import annotations

import importlib
from typing import Any, Final, NamedTuple

import typer

from elastane_cli.commands.config_file import ConfigFile
from elastane_common.help_text import Application, HelpGroup


class Entry(NamedTuple):
    """A command.

    module: in `elastane_cli.commands`. panel: heading in the list. text: first paragraph of its help.
    """

    module: str
    panel: str
    text: str
    hidden: bool = False


COMMANDS: Final = {
    "run": Entry("run", "Run", "Run a script elastically, on workers of this machine."),
    "launch": Entry(
        "launch",
        "Run",
        "Run a torchrun-style script unchanged; all processes restart when hosts join or leave.",
    ),
    "submit": Entry(
        "submit",
        "Run",
        "Queue a run of the training service, and follow it: its state, and the log of rank 0.",
    ),
    "verify": Entry(
        "verify", "Run", "Prove on your own script that elastic training gives the bits of stock DDP."
    ),
    "chaos": Entry(
        "chaos",
        "Run",
        "Inject real faults into a training run on this machine, and check that nothing is lost.",
    ),
    "profile": Entry(
        "profile",
        "Run",
        "Measure the units of a script's pipeline: times, bytes and memory of each, as JSON for the planner.",
    ),
    "drill": Entry(
        "drill",
        "Run",
        "Rehearse the reclaim of spot nodes with your own script: does it leave in time, with the same bits?",
    ),
    "master": Entry("master", "Run", "Start a master (all options: elastane master --help)."),
    "service": Entry(
        "service", "Run", "Run a training service on this machine: a master and a runner in one command."
    ),
    "runner": Entry("runner", "Run", "Start the processes of the training service's runs on this machine."),
    "status": Entry("jobs", "Look", "Show a job with its workers, or a run with its ranks and its history."),
    "jobs": Entry(
        "jobs", "Look", "List all jobs of the master, and the newest runs of its training service."
    ),
    "list": Entry(
        "jobs",
        "Look",
        "List all jobs of the master, and the newest runs of its training service.",
        hidden=True,
    ),
    "queue": Entry(
        "runs",
        "Look",
        "Show the runs that wait, in the order of the queue: place, owner, priority, age, and the reason.",
    ),
    "why": Entry(
        "why", "Look", "Show why a run has the slots that it has, or a job its workers and their ranges."
    ),
    "logs": Entry(
        "logs",
        "Look",
        "Print the output of one rank of a run, or of the workers of a job; with --follow as it comes.",
    ),
    "trace": Entry(
        "captures", "Look", "Trace the next steps of a job with torch.profiler, all workers in one file."
    ),
    "stacks": Entry(
        "captures", "Look", "Show the stacks of all threads of a job's workers: where a worker hangs."
    ),
    "artifacts": Entry(
        "runs",
        "Look",
        "List the files that a run has left: its model, logs and record, with sizes and digests.",
    ),
    "plan": Entry(
        "plan",
        "Look",
        "Show which numbers of workers are worthwhile for a running job; with --profile, plan a pipeline.",
    ),
    "cost": Entry(
        "cost",
        "Look",
        "Show what a job's workers have cost, and the savings compared with on-demand machines.",
    ),
    "health": Entry("health", "Look", "Check whether a master serves; for health checks."),
    "scale": Entry(
        "operate",
        "Operate",
        "Change a job's minimum and maximum number of workers, or have the master choose the number.",
    ),
    "drain": Entry(
        "operate", "Operate", "Ask one worker to leave at the next step boundary; no step is lost."
    ),
    "checkpoint": Entry(
        "operate", "Operate", "Save a checkpoint at the next step boundary, and wait until it is complete."
    ),
    "suspend": Entry(
        "operate",
        "Operate",
        "Save a checkpoint, then release all workers; `elastane resume` continues the job.",
    ),
    "resume": Entry(
        "operate",
        "Operate",
        "Resume a suspended job, or one that exceeded --max-wait, as soon as workers are available.",
    ),
    "cancel": Entry("operate", "Operate", "End a job at once, or a run; checkpoints stay."),
    "retry": Entry(
        "runs",
        "Operate",
        "Queue a failed or cancelled run again; it keeps its number and has all its retries again.",
    ),
    "priority": Entry("runs", "Operate", "Change a run's priority in the queue."),
    "delete": Entry(
        "operate",
        "Operate",
        "Delete a finished job or run and everything that the master stores about it.",
    ),
    "repair": Entry(
        "operate",
        "Operate",
        "Serve a damaged job again, once its keys are restored to the store, or without what is lost.",
    ),
    "price": Entry(
        "cost",
        "Operate",
        "Set the prices of a job's workers from now on; earlier charges stay as they are.",
    ),
    "progress": Entry(
        "progress",
        "Look",
        "Show progress through the data: tasks to do, doing, done, re-queued; samples/s and time left.",
    ),
    "top": Entry(
        "top",
        "Look",
        "Show jobs live: their workers, logical workers, tasks, events and curves. Press ? for the keys.",
    ),
    "events": Entry(
        "events", "Look", "Show what happened to a job and why: joins, deaths, ring changes, checkpoints."
    ),
    "explain": Entry(
        "explain",
        "Look",
        "Explain why a worker is in the ring, stands by, or is out: the events that led to it.",
    ),
    "curve": Entry("curve", "Look", "Draw what the script logged (job.log), each committed step once."),
    "track": Entry(
        "track", "Look", "Write what the script logged to TensorBoard, MLflow or W&B, each step once."
    ),
    "report": Entry(
        "report",
        "Look",
        "Write a report of a job into one file: its ring over time, throughput, faults and what they cost.",
    ),
    "simulate": Entry(
        "simulate",
        "Look",
        "Play a trace of jobs through scheduling policies: completion times, fairness, use, money.",
    ),
    "audit": Entry(
        "audit",
        "Look",
        "Check that every sample of every epoch counts exactly once in the job's history.",
    ),
    "ps": Entry(
        "ps",
        "Look",
        "Show a job's parameter servers and slots; audit, checkpoint, rewind, export, drain or replay them.",
    ),
    "doctor": Entry(
        "doctor",
        "Run",
        "Find what is wrong or not deterministic on this machine and in a script, before training.",
    ),
    "config": Entry(
        "config", "Look", "Show which options a file or a variable sets, and where each value is from."
    ),
    "errors": Entry("errors", "Look", "Explain an error code: its cause, and what to do."),
    "demo": Entry(
        "demo",
        "Run",
        "Train digits elastically while workers and master are killed, and compare with stock DDP.",
    ),
    "token": Entry(
        "token", "Run", "Create a token: a file for the caller, and the entry for the master's --token-file."
    ),
}


ELSEWHERE: Final = {
    "dashboard": "a master serves the dashboard itself, on its HTTP port. Start one with "
    "`elastane master --http HOST:PORT`, or `elastane run --http HOST:PORT`, and open http://HOST:PORT/",
}
"""Words that are not commands, and where to find what they stand for."""


class CommandGroup(HelpGroup):
    """Group that lists commands from the catalogue and loads one when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve the command that the arguments name, and load it with all its options. Called by Typer."""
        if args and args[0] in ELSEWHERE:
            ctx.fail(f"No such command '{args[0]}': {ELSEWHERE[args[0]]}")
        name, command, rest = super().resolve_command(ctx, args)
        if name not in COMMANDS:
            return name, command, rest
        loaded = load(name)
        if isinstance(ctx.obj, ConfigFile):
            ctx.default_map = {name: ctx.obj.defaults(name, loaded)}
        return name, loaded, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command; the error for a value that is from the file names the file. Called by Typer."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if isinstance(ctx.obj, ConfigFile) and _is_from_file(error):
                error.message = f"{error.message} (from {ctx.obj.path})"
            raise


def _is_from_file(error: Any) -> bool:
    """True if the option that an error is about has its value from the configuration file."""
    options = error.ctx.command.params if error.ctx is not None else []
    for option in options:
        if option is error.param or (error.param is None and error.param_hint in option.opts):
            source = error.ctx.get_parameter_source(option.name)
            return source is not None and source.name == "DEFAULT_MAP"
    return False


def list_in(app: typer.Typer) -> None:
    """Register a placeholder for every command, for the application's list."""
    for name, entry in COMMANDS.items():
        app.command(name, help=entry.text, rich_help_panel=entry.panel, hidden=entry.hidden)(_listed)


def load(name: str) -> Any:
    """Import a command's module; return the command with all its options."""
    app = Application(add_completion=False)
    app.callback()(_listed)  # without a callback, Typer makes a module's only command the application
    importlib.import_module(f"elastane_cli.commands.{COMMANDS[name].module}").register(app)
    group: Any = typer.main.get_command(app)
    return group.commands[name]


def _listed() -> None:
    """Placeholder for a command that is not loaded."""
