"""Guard RANK, WORLD_SIZE and similar variables, which torchrun sets for each rank and Elastane does not.

A worker runs several ranks, which change over time. A script that reads `os.environ.get("RANK", 0)` would
silently get the values of a single process, or those of the launcher that started the agent. So these
variables are removed from the worker's environment, and a script that reads one is refused at that line; it
may read what it has set itself. torch and Elastane get the true answer (not set), and so does an installed
package, with one warning; but Accelerate, which would train alone, is refused, and so is a strategy of
Lightning's that would start processes. While data is made for an EST, packages get its rank.

Scripts read them before `elastane.init`, so a worker is guarded from `import elastane` on. Until `init` says
whether single-process answers are intended (`distributed_calls=True`), a read with a default is only
recorded.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType
from typing import Any, Final, NoReturn

from elastane.script_source.places import OWN_PACKAGES, place_of, script_frame
from elastane.script_source.plain_libraries import own_strategy_error, plain_library_error
from elastane_common.errors import ElastaneError, UnsupportedError
from elastane_proto.launcher_variables import LAUNCHER_VARIABLES

_ALLOW: Final = (
    "; or elastane.init(..., distributed_calls=True), if the answers of a single process are intended"
)
_OURS: Final = frozenset({"torch", *OWN_PACKAGES})
_PASSED_ON: Final = frozenset({"os", "_collections_abc", "collections.abc", __name__})
_LIGHTNING: Final = frozenset({"lightning", "lightning_fabric", "pytorch_lightning"})
#: What Lightning's strategies of several processes ask of their ClusterEnvironment, and no other does.
_LIGHTNING_ASKS: Final = frozenset({"creates_processes_externally", "node_rank"})
_STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib")


class LauncherVariableError(UnsupportedError):
    """The script reads a variable that torchrun sets for each rank."""

    code = "ELA365"


#: The first refusal, raised later if the script received a default or caught the error.
_refusal: LauncherVariableError | None = None
_begun = False
_warned: set[str] = set()


class _Guarded(os._Environ):  # type: ignore[type-arg]
    """Class of `os.environ` in a worker; `get`, `in` and `os.getenv` also end up here."""

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except KeyError:
            if key in LAUNCHER_VARIABLES and (answer := _asked(key, sys._getframe(1))) is not None:
                return answer
            raise


def install() -> None:
    """Guard this process. A second call does nothing."""
    if isinstance(os.environ, _Guarded):
        return
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    os.environ.__class__ = _Guarded


def allow() -> None:
    """Remove the guard, because the script intends to get single-process answers."""
    global _refusal
    _refusal = None
    if isinstance(os.environ, _Guarded):
        os.environ.__class__ = os._Environ  # type: ignore[assignment]


def begin() -> None:
    """Guard this process when `elastane.init` is called, and refuse earlier reads."""
    global _begun
    install()
    check()
    _begun = True


def know(package: str) -> None:
    """Give no warning of an installed package, whose questions an integration answers."""
    _warned.add(package)


def check() -> None:
    """Raise a refusal again that the script ignored. Called where training begins or continues."""
    if _refusal is not None:
        raise _refusal


def _asked(name: str, frame: FrameType | None) -> str | None:
    """Refuse a read by the script; return what others are told, None if the variable is not set."""
    global _refusal
    plain = frame is not None and frame.f_globals.get("__name__") not in _PASSED_ON
    while frame is not None and frame.f_globals.get("__name__") in _PASSED_ON:
        frame = frame.f_back
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0] if frame is not None else ""
    if frame is None or package in _OURS:
        return None
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    if _is_installed(frame.f_code.co_filename):
        if (answer := _while_data_is_made(name)) is not None:
            return answer
        if package in _LIGHTNING and frame.f_code.co_name in _LIGHTNING_ASKS:
            script = script_frame(frame)
            _end(own_strategy_error(place_of(script or frame)))
        if package not in _warned:
            if frame.f_globals.get("__name__") == "accelerate.state":  # its Accelerator, or PartialState
                script = script_frame(frame)
                _end(plain_library_error(place_of(script or frame), "accelerate", "Accelerator"))
            _warned.add(package)
            import structlog

            structlog.get_logger(__name__).warning(
                f"{place} of {package} reads the variable {name}, which torchrun sets for each rank and "
                "Elastane does not. What it does once for all ranks under torchrun, it does in each "
                "worker"
            )
        return None
    error = LauncherVariableError(
        f"{place} reads the variable {name}, which torchrun sets for each rank and Elastane does not",
        hint=LAUNCHER_VARIABLES[name] + _ALLOW,
        variable=name,
    )
    _refusal = _refusal or error
    if _begun:
        raise error
    if plain:  # os.environ["RANK"]: the script has no default to continue with
        _end(error)
    return None


def _while_data_is_made(name: str) -> str | None:
    """Return the rank of the EST whose batch is being made here, or the number of ESTs; None at other times.

    A package that splits a stream of data by rank, such as WebDataset, reads them where the stream begins.
    """
    current = sys.modules.get("elastane.data.current")
    if current is None or current.rank is None:
        return None
    return {"RANK": str(current.rank), "WORLD_SIZE": os.environ.get("ELASTANE_ESTS")}.get(name)


def _end(error: ElastaneError) -> NoReturn:
    """Exit with the error's code: before `elastane.init` nothing translates errors into exit codes."""
    sys.stderr.write(f"elastane: {error.line()}\n")
    raise SystemExit(error.exit_code) from error


def _is_installed(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path or path.startswith(_STANDARD_LIBRARY)
