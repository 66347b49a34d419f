"""Replaces library functions for the script, also where it has imported them by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any


def replace_functions(replacements: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
    """Replace functions in the namespaces of all loaded modules, the script's included.

    replacements: original function -> replacement. A module that is loaded later gets the replacement from
    the library's own module.
    """
    replaced = {id(original): replacement for original, replacement in replacements.items()}
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in replaced and callable(value):
                setattr(module, name, replaced[id(value)])
