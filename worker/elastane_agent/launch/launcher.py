"""Executes the decisions of `LaunchPolicy`: local and remote processes, the discovery script, signals.

One thread takes events from one queue, as in the agent of elastic jobs: exits, hosts, signals, time.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elastane_agent.hosts.discovery import SCRIPT_TIMEOUT_SECONDS, Discovery
from elastane_agent.hosts.remote import is_local, remote_command
from elastane_agent.launch.plan import Process, environment, processes, tf_config
from elastane_agent.launch.policy import Action, LaunchPolicy, StartRound
from elastane_agent.supervisor.actions import Finish, Kill, Say, Terminate
from elastane_agent.supervisor.budget import RestartBudget
from elastane_common.ports import unused_port
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_common.processes.output import Output
from elastane_common.processes.signal_handlers import STOP_SIGNALS, signal_handlers


@dataclass(frozen=True)
class LaunchSettings:
    """Settings of one `elastane launch`.

    command: program and arguments of every process. hosts: fixed slots by host; or hosts_script: a program
    that prints them, run every `interval_seconds`, each time for at most `hosts_timeout_seconds`. template:
    command line for another host. port: on which rank 0 listens; 0: a free one if all processes run on this
    machine, else 29500. passed: names of this process's variables that remote processes also get; local ones
    get all.
    """

    command: tuple[str, ...]
    workers_min: int
    workers_max: int
    hosts: Mapping[str, int] = field(default_factory=dict)
    hosts_script: Path | None = None
    interval_seconds: float = 5.0
    hosts_timeout_seconds: float = SCRIPT_TIMEOUT_SECONDS
    template: str = "ssh -tt -o BatchMode=yes {host} {command}"
    port: int = 0
    passed: tuple[str, ...] = ()
    with_tf_config: bool = False
    grace_seconds: float = 30.0
    settle_seconds: float = 5.0
    wait_max_seconds: float = 0.0
    budget: RestartBudget = field(default_factory=RestartBudget)


@dataclass(frozen=True)
class _Exited:
    round: int
    rank: int
    status: ExitStatus


@dataclass(frozen=True)
class _Hosts:
    hosts: Mapping[str, int]


@dataclass(frozen=True)
class _Signalled:
    number: int


_Event = _Exited | _Hosts | _Signalled


class Launcher:
    """One `elastane launch`. Call `run` once, from the main thread."""

    def __init__(self, settings: LaunchSettings, output: Output) -> None:
        self._settings = settings
        self._output = output
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._children: dict[int, ChildProcess] = {}
        self._discovery: Discovery | None = None
        self._run_id = uuid.uuid4().hex
        self._code: int | None = None
        self._policy = LaunchPolicy(
            workers_min=settings.workers_min,
            workers_max=settings.workers_max,
            budget=settings.budget,
            grace_seconds=settings.grace_seconds,
            settle_seconds=settings.settle_seconds,
            wait_max_seconds=settings.wait_max_seconds,
        )

    def run(self) -> int:
        """Run until all processes have finished, or are given up; return the exit code."""
        with signal_handlers(STOP_SIGNALS, self._signalled, keep_ignored=True):
            try:
                self._discover()
                self._perform(self._policy.tick(time.monotonic()))
                while self._code is None:
                    self._run_once()
            finally:
                if self._discovery is not None:
                    self._discovery.stop()
                for child in self._children.values():
                    child.kill_group()
                for child in self._children.values():
                    child.wait()
        return self._code

    # ------------------------------------------------------------------ events

    def _signalled(self, number: int, _: object) -> None:
        self._events.put(_Signalled(number))

    def _run_once(self) -> None:
        due = self._policy.next_due()
        timeout = max(0.0, due - time.monotonic()) if due is not None else None
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            self._perform(self._policy.tick(time.monotonic()))
            return
        now = time.monotonic()
        match event:
            case _Exited(number, rank, status):
                if number == self._policy.round:
                    self._perform(self._policy.exited(now, rank, status))
            case _Hosts(hosts):
                self._perform(self._policy.hosts_changed(now, hosts))
            case _Signalled(number):
                self._perform(self._policy.signalled(now, number))

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartRound():
                    self._start(action)
                case Terminate(rank):
                    self._children[int(rank)].signal(signal.SIGTERM)
                case Kill(rank):
                    self._children[int(rank)].kill_group()
                case Say(text, kind, event, _):
                    self._output.say(text, kind, event)
                case Finish(code):
                    self._code = code

    # ------------------------------------------------------------------ processes

    def _start(self, start: StartRound) -> None:
        everybody = processes(start.slots)
        leader, port = self._rendezvous(everybody, start.number)
        self._children = {}
        for process in everybody:
            variables = environment(
                process,
                leader=leader,
                port=port,
                restarts=start.number,
                restarts_max=self._settings.budget.restarts_max,
                run_id=self._run_id,
            )
            if self._settings.with_tf_config:
                variables["TF_CONFIG"] = tf_config(start.slots, process.rank, port)
            self._children[process.rank] = self._child(start.number, process, variables)
        for child in self._children.values():
            child.start()

    def _child(self, number: int, process: Process, variables: dict[str, str]) -> ChildProcess:
        command, here = list(self._settings.command), is_local(process.slot.host)
        if not here:
            passed = {name: os.environ[name] for name in self._settings.passed if name in os.environ}
            command = remote_command(
                self._settings.template, process.slot.host, command, {**passed, **variables}, str(Path.cwd())
            )
        return ChildProcess(
            f"rank{process.rank}",
            command,
            environment={**os.environ, "PYTHONUNBUFFERED": "1", **(variables if here else {})},
            on_line=self._output.line,
            on_exit=lambda _, status: self._events.put(_Exited(number, process.rank, status)),
        )

    def _rendezvous(self, everybody: list[Process], number: int) -> tuple[str, int]:
        """Return where rank 0 listens, with a new port every round: a dying process may hold the last."""
        leader = everybody[0].slot.host
        if all(is_local(process.slot.host) for process in everybody):
            leader = "127.0.0.1"
            if not self._settings.port:
                return leader, unused_port()
        elif is_local(leader):
            leader = socket.gethostname()  # "localhost" would mean another machine there
        return leader, (self._settings.port or 29500) + number % 100

    # ------------------------------------------------------------------ hosts

    def _discover(self) -> None:
        settings = self._settings
        if settings.hosts_script is None:
            self._events.put(_Hosts(settings.hosts))
            return
        self._discovery = Discovery(
            settings.hosts_script,
            interval_seconds=settings.interval_seconds,
            timeout_seconds=settings.hosts_timeout_seconds,
            on_hosts=lambda hosts: self._events.put(
                _Hosts({host: offer.slots for host, offer in hosts.items()})
            ),
            on_trouble=lambda text: self._output.say(text, "warning", "discovery_failed"),
        )
        self._discovery.start()


def python_command(script: list[str], *, module: bool, program: bool) -> tuple[str, ...]:
    """Return the command of a script: run by this interpreter, as a module, or as a program."""
    if program:
        return tuple(script)
    return (sys.executable, "-u", *(["-m"] if module else []), *script)
