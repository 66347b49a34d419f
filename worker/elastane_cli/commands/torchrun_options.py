"""Options of torchrun, as `elastane run` takes them: translated before its own are parsed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

#: Option of torchrun -> why it has no counterpart. All take a value.
_IGNORED: Final = {
    "--rdzv-backend": "the master brings the workers together",
    "--rdzv-endpoint": "--master HOST:PORT names a running master, --listen the embedded one's address",
    "--rdzv-id": "--job names the job",
    "--rdzv-conf": "the master brings the workers together",
    "--node-rank": "the master assigns the ranks",
    "--master-addr": "--master HOST:PORT names a running master",
    "--master-port": "--master HOST:PORT names a running master",
    "--monitor-interval": "workers are watched all the time",
    "--start-method": "each worker is a process of its own",
    "--role": "all workers are alike",
    "--redirects": "the workers' output is shown here",
    "--tee": "the workers' output is shown here",
}
_STANDALONE: Final = "--standalone"
_PER_NODE: Final = "--nproc-per-node"
_NODES: Final = "--nnodes"
_SEVERAL_MACHINES: Final = ("--master", "--hosts")


class TorchrunOptionError(ValueError):
    """An option of torchrun that `elastane run` cannot take as it is. option: its name."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


class Translated(NamedTuple):
    """A command line of `elastane run`, and what to tell the user of the options that were replaced."""

    words: list[str]
    notes: list[str]


def translate(words: Sequence[str], takes_value: Callable[[str], bool | None]) -> Translated:
    """Translate torchrun's options that stand before the script.

    takes_value: whether an option of `elastane run` itself has a value; None if there is no such option.
    Raises TorchrunOptionError.
    """
    found: dict[str, str] = {}
    own: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        name, separator, value = word.partition("=")
        torchruns = name.replace("_", "-")
        if takes_value(name) is None and torchruns in (_PER_NODE, _NODES, _STANDALONE, *_IGNORED):
            if torchruns != _STANDALONE and not separator:
                if not rest:
                    raise TorchrunOptionError(name, "a value is missing")
                value = rest.pop(0)
            found[torchruns] = value
            continue
        own.append(word)
        if takes_value(name) and not separator and rest:
            own.append(rest.pop(0))
    if not found:
        return Translated(list(words), [])
    names = {word.partition("=")[0] for word in own}
    notes = [f"{name} has no effect: {_IGNORED[name]}" for name in found if name in _IGNORED]
    if _STANDALONE in found:
        notes.append("--standalone has no effect: without --master the job is one of this machine")
    if _PER_NODE in found or _NODES in found:
        ests = _ests(found, names)
        given = " ".join(f"{name} {found[name]}" for name in (_NODES, _PER_NODE) if name in found)
        notes.append(
            f"{given} is taken as --ests {ests}: the number of ranks, which fixes the result. How many "
            "workers run them may change: --workers MIN:MAX"
        )
        own = ["--ests", str(ests), *own]
    return Translated([*own, *rest], notes)


def _ests(found: dict[str, str], names: set[str]) -> int:
    """Return the number of ranks that torchrun would start."""
    if "--ests" in names:
        option = _PER_NODE if _PER_NODE in found else _NODES
        raise TorchrunOptionError(option, "--ests already says how many ranks there are: give one of them")
    each = _number(_PER_NODE, found.get(_PER_NODE, "1"))
    # torchrun's MIN:MAX changes the number of ranks as nodes come and go; a job has as many as it may have.
    least, _, most = found.get(_NODES, "1").rpartition(":")
    nodes = _number(_NODES, most)
    if least and _number(_NODES, least) > nodes:
        raise TorchrunOptionError(_NODES, f"{found[_NODES]!r}: MIN is above MAX")
    if nodes > 1 and not names & set(_SEVERAL_MACHINES):
        raise TorchrunOptionError(
            _NODES,
            f"{nodes} machines: run this on one of them with --hosts, a program that lists them, or on each"
            f" with --master HOST:PORT and --ests {each * nodes} (docs/howto/from-torchrun.md)",
        )
    return each * nodes


def _number(option: str, value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise TorchrunOptionError(option, f"{value!r} is not a number of at least 1; give the number itself")
    return int(value)
