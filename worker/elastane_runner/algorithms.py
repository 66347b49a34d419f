"""Algorithms that a runner offers: training code installed by its operator, listed in a TOML file.

[digits]
command = ["python", "train.py"]     of an elastic run: the script and its arguments
folder = "/srv/digits"               that ranks are started in; relative to the file; empty: one of their own
image = "registry/digits:3"          of containers, unless the run names one; process runners ignore it
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from elastane_common.errors import RefusedError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Algorithm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One algorithm; see the module. folder: absolute, or empty."""

    command: tuple[str, ...] = ()
    folder: str = ""
    image: str = ""


def read_algorithms(path: Path, *, in_images: bool = False) -> Mapping[str, Algorithm]:
    """Read the file of `--algorithms`. Raises RefusedError that names what is wrong.

    in_images: folders are those of images, and not on this machine.
    """
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=dict[str, Algorithm])
    except OSError as error:
        raise RefusedError(
            f"{path} cannot be read: {error.strerror or error}", hint="--algorithms names it"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RefusedError(
            f"{path}: {error}", hint="a table for each algorithm, with command, folder and image"
        ) from error
    for name, algorithm in found.items():
        if not _NAME.fullmatch(name):
            raise RefusedError(
                f"{path}: {name!r} cannot be the name of an algorithm",
                hint="1 to 128 letters, digits, dots, dashes and underscores, the first a letter or digit",
            )
        if not algorithm.command or not algorithm.command[0]:
            raise RefusedError(
                f"{path}: {name} has no command", hint='as in command = ["python", "train.py"]'
            )
    absolute = {
        name: msgspec.structs.replace(one, folder=str((path.parent / one.folder).resolve()))
        if one.folder
        else one
        for name, one in found.items()
    }
    for name, one in absolute.items():
        if one.folder and not in_images and not Path(one.folder).is_dir():
            raise RefusedError(f"{path}: the folder {one.folder} of {name} is not there")
    return absolute
