"""Guard torch.distributed against use by the script: a worker has no process group of ranks.

ESTs move between processes, so a collective in the script cannot work as it does under stock DDP. Worse than
a call that fails is a query that succeeds: `if dist.is_initialized():` would take the branch of a single
process and silently train different bits. So queries and calls are refused at their line.

torch's own queries (optimizers, DataLoader, checkpoints) get the true answer, and so do Elastane's. An
installed package may query in order to print only once; it also gets the true answer, and a warning names it.
All calls of torch.distributed look up their process group through one function; the guard replaces that
function, and its error says what to write instead.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NoReturn

import structlog
from torch.distributed import distributed_c10d

from elastane.runtime import launcher_variables
from elastane.runtime.replaced_functions import replace_functions
from elastane.script_source.places import OWN_PACKAGES, place_of
from elastane_common.errors import UnsupportedError

_log = structlog.get_logger(__name__)

_OURS: Final = frozenset({"torch", "functools", "contextlib", "typing_extensions", *OWN_PACKAGES})
_STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib")
_ALLOW: Final = (
    "or elastane.init(..., distributed_calls=True), if the answers of a single process are intended"
)
_WHOLE: Final = "every worker holds the whole model: pass it to job.prepare unchanged"
_HINTS: Final = {
    "is_initialized": f"use job.num_ests, job.rank and job.is_leader; {_ALLOW}",
    "get_rank": "use job.rank, or job.is_leader for what only one worker does",
    "get_world_size": "use job.num_ests",
    "get_backend": "leave it out",
    "init_process_group": "leave it out: elastane.init has joined the job",
    "destroy_process_group": "leave it out: the job ends with its epochs",
    "barrier": "leave it out: a step is a barrier; between epochs `if job.is_leader:` needs none",
    "DistributedDataParallel.__init__": "pass the model to job.prepare, which replaces it",
    "DistributedSampler.__init__": "pass num_replicas=job.num_ests, rank=0: every EST gets its own rank",
    "fully_shard": _WHOLE,
    "FullyShardedDataParallel.__init__": _WHOLE,
    "init_device_mesh": _WHOLE,
    "DeviceMesh.__init__": _WHOLE,
}
_OTHERWISE: Final = (
    "the prepared model averages gradients; use job.log for values that are only reported, and evaluate "
    "under `if job.is_leader:`; inside a step there is no value from all ESTs"
)


class DistributedCallError(UnsupportedError):
    """The script itself calls or queries torch.distributed."""

    code = "ELA360"


#: The last refusal, raised again if the script caught it and goes on.
_refusal: DistributedCallError | None = None
_warned: set[str] = set()


def know(package: str) -> None:
    """Give no warning of an installed package, whose questions an integration answers."""
    _warned.add(package)


def check() -> None:
    """Raise a refusal again that the script has caught. Called where training begins or continues."""
    if _refusal is not None:
        raise _refusal
    launcher_variables.check()


def install() -> None:
    """Replace the functions in this process. A second call does nothing."""
    if hasattr(distributed_c10d._get_default_group, "__wrapped__"):
        return
    refused = (
        distributed_c10d._get_default_group,
        distributed_c10d.init_process_group,
        distributed_c10d.destroy_process_group,
    )
    asked = distributed_c10d.is_initialized
    replace_functions({asked: _asked(asked), **{one: _refused(one) for one in refused}})


def _asked(original: Callable[..., Any]) -> Callable[..., Any]:
    """Guard `is_initialized`, whose answer depends on the caller."""

    @functools.wraps(original)
    def is_initialized() -> Any:
        frame = sys._getframe(1)
        package = _package(frame)
        if package in _OURS:
            return original()
        if not _is_installed(frame):
            _refuse("is_initialized", frame)
        if package not in _warned:
            _warned.add(package)
            _log.warning(
                f"{place_of(frame)} of {package} asks torch.distributed whether it is initialized, and it "
                "is not. What it does for all ranks together under stock DDP, it does in each worker "
                "separately"
            )
        return original()

    return is_initialized


def _refused(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        called, caller = original.__name__, None
        for frame in _frames():
            if _package(frame) not in _OURS:
                caller = frame
                break
            if _package(frame) == "torch" and "<locals>" not in frame.f_code.co_qualname:
                called = frame.f_code.co_qualname
        _refuse(called, caller)

    return refused


def _frames() -> Iterator[FrameType]:
    """The callers' frames, nearest first."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _refuse(called: str, caller: FrameType | None) -> NoReturn:
    global _refusal
    place = f"{place_of(caller)} calls " if caller is not None else ""
    _refusal = DistributedCallError(
        f"this script calls torch.distributed itself: {place}{called.removesuffix('.__init__')}",
        hint=_HINTS.get(called, _OTHERWISE),
        call=called,
    )
    raise _refusal


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_installed(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    return "site-packages" in path or "dist-packages" in path or path.startswith(_STANDARD_LIBRARY)
