"""The process of a parameter server: its session with the master, its signals, its end.

SIGTERM requests a drain: the slots move, and the process leaves once it has none. If there is no other
process to which they could move, they are saved first. A fault ends the process at once, with all that it
holds, because a slot that may be half updated must not be served or saved.

Storage may hang for ever. After SIGTERM the process ends when its notice is over, whatever it waits for.
Without SIGTERM, as in a drain by an operator, it ends once it has saved no slot for the same time. The master
then considers it dead.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import structlog
import torch

from elastane.runtime.process_identity import ProcessIdentity
from elastane_common import logs
from elastane_common.credentials import master_has_tls
from elastane_common.errors import EXIT_SCRIPT_RAISED, ElastaneError
from elastane_common.process_tls import offer_of
from elastane_proto import rendezvous, versions
from elastane_proto.v1 import ps_pb2
from elastane_ps.app import PsServer
from elastane_ps.environment import PsEnvironment, read_environment
from elastane_ps.memory import Room
from elastane_ps.session import PsSession

_log = structlog.get_logger(__name__)

#: Interval of the checks whether a drained process still holds slots, in seconds.
_LOOK_SECONDS: Final = 0.1


class PsProcess:
    """The process, from its first Hello to its exit code."""

    def __init__(self, environment: PsEnvironment) -> None:
        self._environment = environment
        self._identity = ProcessIdentity()
        self._key = secrets.token_bytes(rendezvous.KEY_BYTES)
        self._changed = threading.Condition()
        self._error: ElastaneError | None = None
        self._done = ""
        self._draining = False
        self._terminated = 0
        self._reason = "drained"
        #: Monotonic time at which the process will be taken away.
        self._until: float | None = None
        self._server = PsServer(
            environment.ps_id,
            environment.job,
            environment.listening_host(),
            self._key,
            tell=self._tell,
            fault=self._fault,
            process=self._identity.name.hex(),
            room=Room(environment.ps_memory_bytes),
            tls=offer_of(environment.ring_tls, master_has_tls()),
        )
        self._session = PsSession(
            environment.master,
            hello=self._hello,
            heartbeat=self._server.heartbeat,
            handler=self._receive,
            failed=self._failed,
            timeout_seconds=environment.master_timeout_seconds,
        )

    def run(self) -> int:
        """Serve until drained, done or refused; return the exit code."""
        has_process = threading.current_thread() is threading.main_thread()
        if has_process:
            signal.signal(signal.SIGTERM, self._at_sigterm)
        logs.say_where(
            lambda: {
                "job": self._environment.job,
                "ps": self._environment.ps_id,
                "generation": self._server.generation,
            }
        )
        self._session.start()
        with self._changed:
            while self._error is None and not self._done and not self._may_leave():
                self._changed.wait(_LOOK_SECONDS if self._draining else None)
            error, done = self._error, self._done
        code = error.exit_code if error is not None else 0 if done else self._environment.drain_exit_code
        if has_process:
            _in_thread(lambda: self._end_at_standstill(code))
        if error is not None:
            sys.stderr.write(f"elastane: {error.line()}\n")
        elif done:
            self._session.end(done)
        else:
            self._server.save_last()
            self._session.end("drained")
        self._server.close()
        return code

    # ------------------------------------------------------------------ the session's threads

    def _hello(self) -> ps_pb2.PsHello:
        environment = self._environment
        hello = ps_pb2.PsHello(
            job=environment.job,
            ps_id=environment.ps_id,
            host=environment.listening_host(),
            pid=os.getpid(),
            address=self._server.address,
            key=self._key,
            process=self._identity.name,
            process_clock=self._identity.clock,
            version=str(versions.PROTOCOL),
            capacity=environment.capacity_type(),
            memory_bytes=environment.ps_memory_bytes,
            held=self._server.held(),
            generation=self._server.generation,
            lease_seen=self._server.holdings.lease_seen,
            lives=self._server.lives,
        )
        hello.process_started.FromNanoseconds(round(self._identity.started_seconds * 1e9))
        return hello

    def _receive(self, message: ps_pb2.AttendSlotsResponse) -> None:
        try:
            self._take(message)
        except ElastaneError:
            raise
        except Exception as error:  # noqa: BLE001 - else the thread would end, and no map follow any more
            self._fault(error)

    def _take(self, message: ps_pb2.AttendSlotsResponse) -> None:
        match message.WhichOneof("message"):
            case "welcome":
                self._server.welcome(message.welcome)
                if self._draining:
                    self._say_leaving()
            case "map":
                self._server.learn(message.map)
            case "model":
                self._server.set_model(message.model)
            case "save":
                _in_thread(lambda: self._server.save(message.save))
            case "save_manifest":
                _in_thread(lambda: self._server.save_manifest(message.save_manifest))
            case "close":
                _in_thread(lambda: self._server.close_tasks(message.close))
            case "drain":
                self._drain(message.drain.reason)
            case "done":
                with self._changed:
                    self._done = message.done.reason or "done"
                    self._changed.notify_all()
            case other:
                _log.warning("unknown message from the master", kind=other)

    def _tell(self, **message: object) -> None:
        self._session.tell(**message)

    def _failed(self, error: ElastaneError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _fault(self, error: BaseException) -> None:
        """End at once. Copies have all that was answered, and nobody may see what is half done."""
        why = error.line() if isinstance(error, ElastaneError) else error
        sys.stderr.write(f"elastane: this parameter server cannot go on: {why}\n")
        sys.stderr.flush()
        os._exit(error.exit_code if isinstance(error, ElastaneError) else EXIT_SCRIPT_RAISED)

    # ------------------------------------------------------------------ leaving

    def _at_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self._terminated += 1
        if self._terminated > 1:
            os._exit(128 + signum)
        # In another thread, because the handler may have interrupted code that holds a lock.
        threading.Thread(target=self._leave_in_time, daemon=True).start()

    def _leave_in_time(self) -> None:
        seconds, reason = self._environment.notice()
        timer = threading.Timer(seconds, os._exit, args=(EXIT_SCRIPT_RAISED,))
        timer.daemon = True
        timer.start()
        self._until = time.monotonic() + seconds
        self.leave(reason)

    def _end_at_standstill(self, code: int) -> None:
        """End the process with `code` once it has saved no slot for the length of a notice."""
        seconds, saved = self._environment.notice_seconds, -1
        while saved < self._server.saved_count:
            saved = self._server.saved_count
            time.sleep(seconds)
        if self._until is None:
            text = f"storage has done nothing for {seconds:g} s: what is not saved is done again"
            sys.stderr.write(f"elastane: this parameter server ends: {text}\n")
            sys.stderr.flush()
            os._exit(code)

    def leave(self, reason: str) -> None:
        """Ask to be drained."""
        self._reason = reason
        self._drain(reason)
        self._say_leaving()

    def die(self) -> None:
        """End like a killed process, without messages; for tests with several servers in one process."""
        with self._changed:
            self._error = ElastaneError("killed")
            self._changed.notify_all()
        self._session.close()
        self._server.close()

    def _say_leaving(self) -> None:
        message = ps_pb2.PsLeaving(reason=self._reason)
        if self._until is not None:
            message.notice.FromNanoseconds(int(max(0.0, self._until - time.monotonic()) * 1e9))
        self._session.tell(leaving=message)

    def _drain(self, reason: str) -> None:
        with self._changed:
            if not self._draining:
                _log.info("this parameter server leaves", reason=reason)
            self._draining = True
            self._changed.notify_all()

    def _may_leave(self) -> bool:
        server = self._server
        # If all drain, wait for slots that are still moving; their new owner saves them.
        return self._draining and (server.holds_nothing or (server.is_alone and not server.copies))


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


def main() -> int:
    """Run a parameter server; returns its exit code."""
    try:
        environment = read_environment()
        logs.configure_logs(environment.log_level, environment.log_format)
        # With one thread, elementwise optimizers have the bits of the whole tensor.
        torch.set_num_threads(1)
        return PsProcess(environment).run()
    except ElastaneError as error:
        sys.stderr.write(f"elastane: {error.line()}\n")
        return error.exit_code
