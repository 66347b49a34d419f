"""What every test run needs, however it was started."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import patience
from integration.forked_cli import ForkedCommands
from integration.forkserver import SHARED_BY, ForkServers, all_forked, fork_servers, none_forked

# A run started in the background by a shell inherits SIGINT as ignored, and so would every process that
# the tests start: those that send SIGINT on purpose would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# As `import elastane` says it: terminals are forked here beside masters' and clients' threads.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Tests use loopback only: no agent asks the addresses of clouds' metadata services by itself.
os.environ.setdefault("ELASTANE_SPOT", "none")


# An example may meet a garbage collection or a busy machine: how long it took is no failure.
hypothesis.settings.register_profile(
    "elastane", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("elastane")

# Processes of multiprocessing's "forkserver" begin with torch loaded, and with what the first step of an
# optimizer imports.
multiprocessing.set_forkserver_preload(
    ["torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.utils.checkpoint"]
)


#: Files with single tests of half a minute and more: they begin first, as nobody can help with those.
LONG = (
    "test_deadline_runs.py",
    "test_docs_commands.py",
    "test_pipeline_chaos.py",
    "test_pipeline_drift.py",
    "test_service_demo.py",
    "test_soak.py",
    "test_straggler_runs.py",
)


def pytest_configure() -> None:
    """The workers of xdist, which inherit it, fork their servers off the same processes."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ[SHARED_BY] = str(os.getpid())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m "slow and not further"` and `-m further` leave out the files without such tests, which are most:
    importing them takes seconds in every worker of xdist."""
    mark = config.option.markexpr.partition(" ")[0]
    if mark not in ("slow", "further") or not collection_path.name.startswith("test_"):
        return None
    return mark not in collection_path.read_text() or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """What is imported and collected is no garbage: looking for some would take a tenth of the time."""
    gc.disable()


def _turn(tests: list[pytest.Item]) -> int:
    """When a file with these tests is dealt out."""
    if tests[0].path.name in LONG:
        return 0
    return 2 if tests[0].nodeid.startswith("tests/unit/") else 1


@pytest.hookimpl(trylast=True)  # of the tests that are selected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal the files out to the workers of xdist: `LONG`, then what starts processes, then the unit tests.

    With `--dist worksteal` each worker begins with an equal part of the list, and once it is done takes tests
    from the end of another's part: short ones, so that all are done at the same time.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if not workers:
        return
    parts: list[list[pytest.Item]] = [[] for _ in range(workers)]
    files = [list(tests) for _, tests in itertools.groupby(items, key=lambda item: item.path)]
    for tests in sorted(files, key=_turn):
        min(parts, key=len).extend(tests)
    # Parts of xdist's sizes: what a part begins with is what its worker begins with.
    sizes = [(len(items) + index) // workers for index in range(workers)]
    over = [test for part, size in zip(parts, sizes, strict=True) for test in part[size:]]
    for part, size in zip(parts, sizes, strict=True):
        del part[size:]
        missing = size - len(part)
        part += over[:missing]
        del over[:missing]
    items[:] = itertools.chain.from_iterable(parts)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is imported and collected stays to the end. No collection of garbage looks at it again, and no
    child of a fork copies it by doing so.

    Torch has one thread here: several workers of pytest share the processors, and OpenMP's threads would spin
    for one another in each small batch norm, which takes ten times the processor time then.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000)  # at 700, one twentieth of the tests' processor time is the collector's


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    return patience.set_timer(item, settings)


@pytest.fixture(autouse=True)
def _torchs_settings() -> Iterator[None]:
    """`elastane.init` sets them for its process; here the next test runs in the same one."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if torch.are_deterministic_algorithms_enabled() != deterministic:
        torch.use_deterministic_algorithms(deterministic)


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """Signal handlers set during a test end with it: uvloop leaves its own when a command runs in-process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def servers() -> Iterator[ForkServers]:
    """What processes are forked off that would otherwise begin with seconds of imports."""
    with fork_servers() as started:
        yield started


@pytest.fixture(scope="session", autouse=True)
def _forked_processes(servers: ForkServers) -> Iterator[None]:
    """Masters, and scripts that train, are forked; modules with `fresh_processes` start them as users do."""
    with all_forked(servers):
        yield


@pytest.fixture(scope="session")
def forked_commands(servers: ForkServers, tmp_path_factory: pytest.TempPathFactory) -> ForkedCommands:
    """Commands whose workers are forked, too."""
    return ForkedCommands(servers, tmp_path_factory.mktemp("forked-commands"))


@pytest.fixture(scope="module")
def fresh_processes() -> Iterator[None]:
    """In this module each process is started with an interpreter of its own."""
    with none_forked():
        yield
