"""Watch the code between epochs for what generator states do not show: drawing by rejection, and reseeding.

`random.shuffle` draws again until a number is small enough. How often depends on the state, so ESTs draw
different numbers of values. And reseeding a generator with the seed it already had leaves its state
unchanged, while the other ESTs' states would change. So such calls are watched while that code runs: methods
of Python's generator in the object itself, whoever refers to it; functions of NumPy and torch, and seeding
functions, as attributes of their modules and under the names by which the script's own modules imported them.
Not covered is a function that an installed package imported by name, or that the script keeps elsewhere: in a
list, as a default argument.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, Final

import torch

from elastane.rng import HAS_NUMPY
from elastane.script_source.places import is_script_file, place_in_words
from elastane.script_source.words import NUMPY_UNEVEN
from elastane_common.errors import EXIT_REFUSED, ElastaneError
from elastane_proto.contexts import NUMPY, PYTHON, TORCH_CPU, TORCH_DEVICE

if HAS_NUMPY:
    import numpy as np


class RankSeedError(ElastaneError):
    """A generator is seeded with the rank in a process that runs several ranks."""

    code = "ELA332"
    exit_code = EXIT_REFUSED


class OutsideRank(int):
    """`job.rank` outside the loader loop, and values computed from it: not usable as a seed."""

    def _derived(name: str) -> Any:  # type: ignore[misc]  # noqa: N805 - makes the methods below
        def method(self: OutsideRank, other: Any) -> Any:
            result = getattr(int, name)(self, other)
            return OutsideRank(result) if isinstance(result, int) else result

        return method

    __add__, __radd__ = _derived("__add__"), _derived("__radd__")
    __mul__, __rmul__ = _derived("__mul__"), _derived("__rmul__")
    __sub__, __rsub__ = _derived("__sub__"), _derived("__rsub__")
    __mod__, __xor__, __rxor__ = _derived("__mod__"), _derived("__xor__"), _derived("__rxor__")


def refuse_rank_seed(place: str) -> SystemExit:
    """Return the exception for a seed computed from the rank.

    The error is printed here, as no error handler may be installed yet.
    """
    error = RankSeedError(
        f"a seed is computed from job.rank in {place}, where one process runs several ranks",
        hint=(
            "elastane.init(seed=S) gives EST r the seed S + r from prepare on; to seed later, do it under "
            "`for rank in job.each_rank():`"
        ),
    )
    sys.stderr.write(f"elastane: {error.line()}\n")
    refusal = SystemExit(error.exit_code)
    refusal.__cause__ = error
    return refusal


_TORCH_UNEVEN: Final = ("binomial", "poisson", "_sample_dirichlet", "_standard_gamma")
_PYTHON_UNEVEN: Final = {
    getattr(random.Random, name).__code__
    for name in ("normalvariate", "gammavariate", "vonmisesvariate", "binomialvariate")
    if hasattr(random.Random, name)
}
_TORCH: Final = (TORCH_CPU, TORCH_DEVICE)


class RngWatch:
    """Watches calls that draw an uneven number of values or seed generators.

    uneven: called with the place of a call whose number of draws depends on the state. seeded: called with
    the generators' names before and after they are seeded; setting a state does not count as seeding.
    """

    def __init__(
        self, uneven: Callable[[str], None], seeded: Callable[[tuple[str, ...], bool], None]
    ) -> None:
        self._uneven = uneven
        self._seeded = seeded
        self._replaced: list[tuple[Any, str, Any]] = []
        #: Places where the script's modules hold functions: (module, name), by the function's id.
        self._names: dict[int, list[tuple[ModuleType, str]]] = {}

    def start(self) -> None:
        """Start watching. A second call does nothing."""
        if self._replaced:
            return
        self._names = _names_in_scripts()
        python: Any = random._inst
        # Private method of the class, which `sample`, `shuffle` and `randint` look up in the object at each
        # call.
        self._in_instance(python, "_randbelow", self._uneven_below(python._randbelow))
        self._in_instance(python, "random", self._uneven_caller(python.random))
        self._watch_seed(random, "seed", (PYTHON,))
        for owner in (torch, torch.random):
            self._watch_seed(owner, "manual_seed", _TORCH)
        for name in _TORCH_UNEVEN:
            self._watch_uneven(torch, name)
        if HAS_NUMPY:
            self._watch_seed(np.random, "seed", (NUMPY,))
            self._watch_seed(np.random, "default_rng", ())
            for name in NUMPY_UNEVEN:
                self._watch_uneven(np.random, name)

    def stop(self) -> None:
        """Restore the original functions."""
        while self._replaced:
            owner, name, original = self._replaced.pop()
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    def _in_instance(self, owner: Any, name: str, replacement: Any) -> None:
        self._replaced.append((owner, name, _ABSENT))
        setattr(owner, name, replacement)

    def _in_module(self, owner: Any, name: str, replacement: Any) -> None:
        original = getattr(owner, name)
        for holder, held in [(owner, name), *self._names.get(id(original), ())]:
            self._replaced.append((holder, held, original))
            setattr(holder, held, replacement)

    def _watch_uneven(self, owner: Any, name: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("generator") is None:
                self._uneven(_place(sys._getframe(1)))
            return original(*args, **kwargs)

        self._in_module(owner, name, watched)

    def _watch_seed(self, owner: Any, name: str, generators: tuple[str, ...]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(value, OutsideRank) for value in (*args, *kwargs.values())):
                raise refuse_rank_seed(_place(sys._getframe(1)))
            if generators:
                self._seeded(generators, False)
            result = original(*args, **kwargs)
            if generators:
                self._seeded(generators, True)
            return result

        self._in_module(owner, name, watched)

    def _uneven_below(self, original: Callable[[int], int]) -> Callable[[int], int]:
        def below(n: int) -> int:
            self._uneven(_place(sys._getframe(1)))
            return original(n)

        return below

    def _uneven_caller(self, original: Callable[[], float]) -> Callable[[], float]:
        def drawn() -> float:
            frame = sys._getframe(1)
            if frame.f_code in _PYTHON_UNEVEN:
                self._uneven(_place(frame))
            return original()

        return drawn


_ABSENT: Final = object()


def _names_in_scripts() -> dict[int, list[tuple[ModuleType, str]]]:
    """Return the names under which the script's modules hold functions, by the function's id."""
    found: dict[int, list[tuple[ModuleType, str]]] = {}
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if is_script_file(names.get("__file__") or ""):
            for name, value in names.items():
                if callable(value):
                    found.setdefault(id(value), []).append((module, name))
    return found


def _place(frame: FrameType | None) -> str:
    """Return the script's line: the first frame outside the standard library's random."""
    while frame is not None and frame.f_code.co_filename == random.__file__:
        frame = frame.f_back
    return "an unknown line" if frame is None else place_in_words(frame)
