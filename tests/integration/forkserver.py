"""Python scripts started by forking a server that has torch loaded: for tests of hundreds of runs.

A fresh interpreter pays seconds of CPU for its imports, more than the training of a small test takes.
`ForkServers.launch` is put in the place of `ChildProcess` and gives the same object, but the script runs
in a fork of a process that has imported everything and done nothing: no thread, no random number, no
OpenMP pool. What must be known before Python starts (threads, instruction set) is that of the server, so
there is one server for each such environment, and two of each, which differ in the seed of string hashes.

A child is its server's; the server ends when this process does (its socket closes), and the kernel
then ends the children. The server leaves a dead child a zombie until the child's watcher asks for its
status: until then its number belongs to nobody else, and its group can be killed safely.

The imports take longer than many a test file, so the workers of xdist share them: the first that needs a
server starts a template, and every server is a fork of it. A template ends with the test run.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import gc
import hashlib
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from elastane_common.processes.child import ChildProcess

#: Prefixes of variables that libraries read once, when they are loaded.
FIXED = (
    "OMP_", "KMP_", "GOMP_", "MKL_", "ATEN_", "ONEDNN_", "DNNL_", "CUBLAS_", "OPENBLAS_", "LD_", "PYTHON",
)  # fmt: skip
SERVERS_PER_ENVIRONMENT = 2
_MESSAGE_BYTES = 1 << 20
_ADDRESS_MAX = 100
_PRELOAD = (
    "numpy",
    "torch",
    "torch._dynamo",  # imported by torch at the first step of an optimizer
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.data",
    "torch.utils.checkpoint",
    "torch.optim.swa_utils",
    "elastane.runtime.elastic",
    "elastane.runtime.stock",
)
_MASTER = "elastane_master"
#: Id of the process whose children share templates: the one that runs the tests, or distributes them.
SHARED_BY = "ELASTANE_TEST_RUN"
#: Imports of a server that runs a module instead of scripts.
_PRELOAD_OF = {
    _MASTER: (f"{_MASTER}.cli", f"{_MASTER}.jobs.job_server", f"{_MASTER}.security.tls", "uvloop"),
    "elastane_ps": ("elastane_ps.process",),
    "elastane_cli": (
        "elastane_cli.commands.runner",
        "elastane_runner.process_engine",
        "elastane_runner.runner",
    ),
}


class ForkServer:
    """One server: `fork` and `reap` are its only requests, answered one at a time.

    script: what it runs; another one than this has other things imported, and calls `serve` as well.
    module: what its forks run, instead of scripts that train: `_PRELOAD_OF` says what it imports.
    """

    def __init__(
        self, environment: Mapping[str, str], script: str = __file__, module: str = "", *, copy: int = 0
    ) -> None:
        self._lock: contextlib.AbstractContextManager[object] = threading.Lock()
        self._socket = _fork_of_template(environment, [script, module], copy) or _started(
            environment, [script, module]
        )
        self._process = os.pidfd_open(int(self._socket.recv(_MESSAGE_BYTES)))

    def fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Return the id of a new process that runs `request` with these outputs."""
        return int(self._ask({"act": "fork", **request}, descriptors)["pid"])

    def reap(self, pid: int) -> int:
        """Return the exit status of an ended process, as in `subprocess`; its id may be reused afterwards."""
        return int(self._ask({"act": "reap", "pid": pid})["returncode"])

    def fileno(self) -> int:
        """Return the descriptor of this side's socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the server and every child it has."""
        self._socket.close()
        select.select([self._process], [], [])
        os.close(self._process)

    def _ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        answer = b""
        with self._lock, contextlib.suppress(ConnectionError):
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
            answer = self._socket.recv(_MESSAGE_BYTES)
        if not answer:
            raise RuntimeError("the fork server ended: it said why")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded


def _started(environment: Mapping[str, str], command: Sequence[str]) -> socket.socket:
    """Start a new server; return the connection to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        _start(environment, command, theirs)
    return _roomy(ours)


def _fork_of_template(
    environment: Mapping[str, str], command: Sequence[str], copy: int
) -> socket.socket | None:
    """Return the connection to a server that its template forks; None outside a test run.

    copy: number of the template, of those of this environment. None as well where the name of the folder of
    temporary files is too long for a socket.
    """
    if (run := os.environ.get(SHARED_BY)) is None:
        return None
    folder = Path(tempfile.gettempdir(), f"elastane-test-run-{run}")
    folder.mkdir(mode=0o700, exist_ok=True)
    key = json.dumps([command, copy, sorted(fixed_variables(environment).items())])
    address = folder / hashlib.sha256(key.encode()).hexdigest()[:16]
    if len(str(address)) > _ADDRESS_MAX:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with address.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(str(address))
        except (FileNotFoundError, ConnectionRefusedError):
            # Refused by what an earlier run of the same number has left.
            address.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(str(address))
                listener.listen()
                _start(environment, [*command, run], listener)
            connection.connect(str(address))
    return _roomy(connection)


def _start(environment: Mapping[str, str], command: Sequence[str], end: socket.socket) -> None:
    script, *arguments = command
    process = subprocess.Popen(
        [sys.executable, script, str(end.fileno()), *arguments],
        pass_fds=[end.fileno()],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    _PROCESSES.append(process)


#: Held, as a `Popen` that is collected warns of its process.
_PROCESSES: list[subprocess.Popen[bytes]] = []


def _roomy(end: socket.socket) -> socket.socket:
    """Enlarge the socket's buffers so that a whole environment fits into one message."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
    return end


def fixed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that must be set before Python starts."""
    return {name: value for name, value in environment.items() if name.startswith(FIXED)}


class _Forked:
    """The part of `subprocess.Popen` that `ChildProcess` needs."""

    def __init__(self, server: ForkServer, pid: int, outputs: Sequence[int]) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None
        pipes = [os.fdopen(end, "rb", 0) for end in outputs]
        self.stdout, self.stderr = pipes or (None, None)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = self._server.reap(self.pid)
        return self.returncode


class ForkedProcess(ChildProcess):
    """A `ChildProcess` forked off a server, if it is a Python script with one thread; else started afresh."""

    def __init__(self, servers: ForkServers, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._servers = servers

    def start(self) -> None:
        if not start_forked(self, self._servers.server_for):
            super().start()


_START_AFRESH = ChildProcess.start


def all_forked(servers: ForkServers) -> contextlib.AbstractContextManager[None]:
    """Context manager: fork every `ChildProcess` of this process for which that is possible.

    Except those with another PYTHONPATH, which may contain modules for Python's start, or fakes.
    """
    path = os.environ.get("PYTHONPATH")

    def start(child: ChildProcess) -> None:
        if child._environment.get("PYTHONPATH") != path or not start_forked(child, servers.server_for):
            _START_AFRESH(child)

    return _started_by(start)


def none_forked() -> contextlib.AbstractContextManager[None]:
    """Context manager: fork no `ChildProcess` other than a `ForkedProcess`."""
    return _started_by(_START_AFRESH)


@contextlib.contextmanager
def _started_by(start: Callable[[ChildProcess], None]) -> Iterator[None]:
    before = ChildProcess.start
    ChildProcess.start = start  # type: ignore[method-assign]
    try:
        yield
    finally:
        ChildProcess.start = before  # type: ignore[method-assign]


def start_forked(
    child: ChildProcess, server_for: Callable[[Mapping[str, str], str], ForkServer | None]
) -> bool:
    """Start the child in a fork, and return True; False if it cannot be run in one.

    server_for: gives the server of these variables, and of this module if it is no script.
    """
    command, environment = child._command, child._environment
    if command[1:2] == ["-u"] and environment.get("PYTHONUNBUFFERED"):  # as the server is
        command = [command[0], *command[2:]]
    if len(command) < 2 or command[0] != sys.executable:
        return False
    if command[1:3] == ["-P", "-m"]:  # nothing of the working directory is imported in a fork
        command = [command[0], *command[2:]]
    module = command[2] if command[1] == "-m" and command[2] in _PRELOAD_OF else ""
    if not module:
        if not command[1].endswith(".py"):
            return False
        if environment.get("OMP_NUM_THREADS") != "1":
            return False  # libraries with thread pools start their threads when they are loaded
    server = server_for(environment, module)
    if server is None:
        return False
    request = {
        "arguments": command[1:],
        "environment": environment,
        "directory": str(child._directory or Path.cwd()),
        "death_signal": int(child._death_signal),
    }
    with contextlib.ExitStack() as stack:
        read: list[int] = []
        if child._log is not None:
            out = err = stack.enter_context(child._log.open("ab")).fileno()
        else:
            (r1, out), (r2, err) = os.pipe(), os.pipe()
            read = [r1, r2]
            stack.callback(os.close, out)
            stack.callback(os.close, err)
        pid = server.fork(request, [out, err])
    child._process = _Forked(server, pid, read)  # type: ignore[assignment]
    child._pidfd = os.pidfd_open(pid)
    threading.Thread(target=child._watch, name=f"child {child.name}", daemon=True).start()
    return True


class ForkServers:
    """The servers of one test session; `close` ends them and all their children.

    per_environment: one is enough where the seed of string hashes does not matter.
    """

    def __init__(self, per_environment: int = SERVERS_PER_ENVIRONMENT) -> None:
        self._per_environment = per_environment
        self._servers: dict[tuple[str, *tuple[tuple[str, str], ...]], deque[ForkServer]] = {}
        self._lock = threading.Lock()

    def launch(self, *args: Any, **kwargs: Any) -> ForkedProcess:
        """Replacement for `ChildProcess(...)`."""
        return ForkedProcess(self, *args, **kwargs)

    def server_for(self, environment: Mapping[str, str], module: str = "") -> ForkServer:
        """Return the next server among those with these variables, which must be set before Python starts."""
        with self._lock:
            key = (module, *sorted(fixed_variables(environment).items()))
            servers = self._servers.setdefault(key, deque())
            if len(servers) < (1 if module else self._per_environment):
                servers.append(ForkServer(environment, module=module, copy=len(servers)))
            else:
                servers.rotate(-1)
            return servers[-1]

    def close(self) -> None:
        for servers in self._servers.values():
            for server in servers:
                server.close()
        self._servers.clear()


@contextlib.contextmanager
def fork_servers(per_environment: int = SERVERS_PER_ENVIRONMENT) -> Iterator[ForkServers]:
    """Provide servers within a block."""
    servers = ForkServers(per_environment)
    try:
        yield servers
    finally:
        servers.close()


# ---------------------------------------------------------------------- the server's own process


def serve(prepare: Callable[[dict[str, Any]], None] = lambda request: None) -> dict[str, Any]:
    """Answer requests until the other side is gone; returns only in a child: with its request.

    The command line has the descriptor of the connection; or a template's listener, and the number
    of the test run: a fork serves each connection then. prepare: called before each fork, in the server.
    """
    channel = socket.socket(fileno=int(sys.argv[1]))
    if len(sys.argv) > 3:
        channel = _accepted(channel, int(sys.argv[3]))
    channel = _roomy(channel)
    channel.send(str(os.getpid()).encode())
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 8)
        if not data:
            os._exit(0)
        request: dict[str, Any] = json.loads(data)
        if request["act"] == "reap":
            _, status = os.waitpid(request["pid"], 0)
            channel.send(json.dumps({"returncode": os.waitstatus_to_exitcode(status)}).encode())
            continue
        prepare(request)
        threads = len(list(Path("/proc/self/task").iterdir()))
        assert threads == 1, f"the fork server has {threads} threads"
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            channel.close()
            _become(request, descriptors, parent)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(json.dumps({"pid": pid}).encode())


def _accepted(listener: socket.socket, run: int) -> socket.socket:
    """Fork for each connection, until the test run is over; returns only in a fork, with its connection."""
    address = Path(listener.getsockname())
    running = os.pidfd_open(run)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # it does not wait for them
    while True:
        readable, _, _ = select.select([listener, running], [], [])
        if running in readable:
            address.unlink()
            address.with_suffix(".lock").unlink()
            with contextlib.suppress(OSError):  # of the last one
                address.parent.rmdir()
            os._exit(0)
        channel, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(running)
            listener.close()
            return channel
        channel.close()


def _become(request: dict[str, Any], descriptors: array.array[int] | list[int], parent: int) -> None:
    """Make this fork like a freshly started process."""
    death_signal = request["death_signal"]
    if ctypes.CDLL(None).prctl(1, death_signal, 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(128 + death_signal)
    os.setsid()
    for number, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # The server's own streams take what they write to for the file that it was: a pipe cannot be sought.
    sys.stdout = sys.__stdout__ = _stream(1, sys.stdout)
    sys.stderr = sys.__stderr__ = _stream(2, sys.stderr)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # the server's own may be gone: it is that of the first run


def _stream(descriptor: int, like: TextIO) -> TextIO:
    """Return an unbuffered stream of text, as Python makes them with PYTHONUNBUFFERED."""
    return io.TextIOWrapper(
        io.FileIO(descriptor, "w", closefd=False),
        encoding=like.encoding,
        errors=like.errors,
        write_through=True,
    )


def _import_what_few_use(request: dict[str, Any]) -> None:
    """Import scikit-learn once a script names it; that takes longer than a small training."""
    if "sklearn" in sys.modules:
        return
    with contextlib.suppress(OSError, ImportError):
        if b"sklearn" in Path(request["directory"], request["arguments"][0]).read_bytes():
            importlib.import_module("sklearn.datasets")
            gc.freeze()


def _seed_anew() -> None:
    """Reseed unseeded generators, which differ in every process. Python's reseeds itself after a fork."""
    import numpy as np
    import torch

    np.random.seed()
    torch.seed()


def run(arguments: Sequence[str]) -> int:
    """Do what `python script.py ...` or `python -m module ...` does after its start; return the exit code."""
    try:
        try:
            if arguments[0] == "-m":
                sys.argv = list(arguments[1:])
                runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
            else:
                _run_script(arguments)
        except Exception:  # noqa: BLE001 - as the interpreter does at its top level
            sys.excepthook(*sys.exc_info())  # which may raise SystemExit
            return 1
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _run_script(arguments: Sequence[str]) -> None:
    script = Path(arguments[0])
    module = types.ModuleType("__main__")
    module.__file__ = str(script)
    sys.argv = list(arguments)
    sys.path[0] = str(script.parent)
    sys.modules["__main__"] = module
    exec(compile(script.read_bytes(), str(script), "exec"), module.__dict__)


def leave(code: int) -> NoReturn:
    """End the process without destroying every module, which would copy the server's memory."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(adapt: Callable[[], None] = lambda: None) -> None:
    """Serve on the socket that the command line names. adapt: called before any fork, with all imported."""
    trains = not sys.argv[2]
    for name in _PRELOAD if trains else _PRELOAD_OF[sys.argv[2]]:
        importlib.import_module(name)
    adapt()
    gc.freeze()  # or the first collection in a child would copy the memory
    request = serve(_import_what_few_use) if trains else serve()
    if trains:
        _seed_anew()
    leave(run(request["arguments"]))


if __name__ == "__main__":
    main()
