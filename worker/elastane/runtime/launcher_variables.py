"""RANK, WORLD_SIZE and the like, as the script sees them in a worker: torchrun sets them, Elastane does not.

A worker stands for several ranks, and which ones changes. A script that reads `os.environ.get("RANK", 0)`
would quietly get the answers of a single process, or those of the launcher that started the agent. So these
variables are taken out of the worker's environment, and who asks for one is refused at that line; what the
script has set itself it may read. torch and Elastane get the true answer (not set), and so does an installed
package, of which a warning says so once.

Scripts read them before `elastane.init`, so a worker is guarded from `import elastane` on. Until `init`
says whether the answers of a single process are meant (`distributed_calls=True`), a read with a default is
only remembered.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType
from typing import Any, Final, NoReturn

from elastane.errors import UnsupportedError
from elastane.script_source.launcher import LAUNCHER_VARIABLES

_ALLOW: Final = (
    "; or elastane.init(..., distributed_calls=True), if the answers of a single process are meant"
)
_OURS: Final = frozenset({"torch", "elastane"})
_PASSED_ON: Final = frozenset({"os", "_collections_abc", "collections.abc", __name__})
_STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib")


class LauncherVariableError(UnsupportedError):
    """The script reads a variable that torchrun sets for each rank."""

    code = "ELA365"


#: The first refusal, in case the script was told a default, or caught it, and goes on.
_refusal: LauncherVariableError | None = None
_begun = False
_warned: set[str] = set()


class _Guarded(os._Environ):  # type: ignore[type-arg]
    """The class of `os.environ` in a worker; `get`, `in` and `os.getenv` come here, too."""

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except KeyError:
            if key in LAUNCHER_VARIABLES:
                _asked(key, sys._getframe(1))
            raise


def install() -> None:
    """Guards this process. A second call does nothing."""
    if isinstance(os.environ, _Guarded):
        return
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    os.environ.__class__ = _Guarded


def allow() -> None:
    """The answers of a single process are meant."""
    global _refusal
    _refusal = None
    if isinstance(os.environ, _Guarded):
        os.environ.__class__ = os._Environ  # type: ignore[assignment]


def begin() -> None:
    """`elastane.init` is called: guards this process, and refuses what was read before."""
    global _begun
    install()
    check()
    _begun = True


def check() -> None:
    """Raises again a refusal that the script has not heeded. Called where training begins or goes on."""
    if _refusal is not None:
        raise _refusal


def _asked(name: str, frame: FrameType | None) -> None:
    """Refuses the script; returns where the true answer is given."""
    global _refusal
    plain = frame is not None and frame.f_globals.get("__name__") not in _PASSED_ON
    while frame is not None and frame.f_globals.get("__name__") in _PASSED_ON:
        frame = frame.f_back
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0] if frame is not None else ""
    if frame is None or package in _OURS:
        return
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    if _is_installed(frame.f_code.co_filename):
        if package not in _warned:
            _warned.add(package)
            import structlog

            structlog.get_logger(__name__).warning(
                f"{place} of {package} reads the variable {name}, which torchrun sets for each rank: it "
                "is not "
                "set. What it does once for all ranks under torchrun, it does in each worker"
            )
        return
    error = LauncherVariableError(
        f"{place} reads the variable {name}, which torchrun sets for each rank and Elastane does not",
        hint=LAUNCHER_VARIABLES[name] + _ALLOW,
        variable=name,
    )
    _refusal = _refusal or error
    if _begun:
        raise error
    if plain:  # os.environ["RANK"]: there is no default
        _end(error)


def _end(error: LauncherVariableError) -> NoReturn:
    """Before `elastane.init` nobody translates errors into exit codes."""
    sys.stderr.write(f"elastane: {error.line()}\n")
    raise SystemExit(error.exit_code) from error


def _is_installed(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path or path.startswith(_STANDARD_LIBRARY)
