"""Attributes that the script sets on its dataset between epochs.

Stock forks its data workers anew at every epoch, so `dataset.epoch = e` in the loop reaches them. Ours are
forked once. Changed plain values are therefore sent to them at the start of an epoch; replacing any other
attribute is an error, because continuing would silently give different batches. (A list changed in place
cannot be detected; with num_workers=0 the dataset is the script's own in any case.)
"""

from __future__ import annotations

from typing import Any

from elastane.data.own_generators import walk
from elastane_common.errors import UnsupportedError

_PLAIN = (int, float, str, bytes, bool, type(None))
_PLAIN_LENGTH_MAX = 4096

Path = tuple[str, ...]


class DatasetAttributes:
    """Attributes of `dataset` and of the objects in them, as the data workers have them."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self._known = _attributes(dataset)

    def changes(self) -> dict[Path, Any]:
        """Return plain values changed since the last call.

        Raises UnsupportedError if an object was replaced.
        """
        present = _attributes(self._dataset)
        changed: dict[Path, Any] = {}
        for path, value in present.items():
            unknown = path not in self._known
            known = self._known.get(path)
            if _is_plain(value):
                if unknown or not _is_plain(known) or known != value:
                    changed[path] = value
            elif known is not value and (len(path) == 1 or not unknown):
                name = ".".join(("dataset", *path))
                raise UnsupportedError(
                    f"{name} was replaced after the data workers were started; they do not have the new "
                    "value",
                    hint="set it before prepare, change only plain values in it, or use num_workers=0",
                    attribute=name,
                )
        self._known = present
        return changed

    def plain_changes(self) -> dict[Path, Any]:
        """Return plain values changed since the last call, ignoring replaced objects."""
        present, known = _attributes(self._dataset), self._known
        self._known = present
        return {
            path: value
            for path, value in present.items()
            if _is_plain(value) and not (path in known and _is_plain(known[path]) and known[path] == value)
        }


def apply(dataset: object, changes: dict[Path, Any]) -> None:
    """Set the values, in a data worker. Paths that exist only in the trainer are ignored."""
    for path, value in changes.items():
        owner: Any = dataset
        for name in path[:-1]:
            owner = getattr(owner, name, None)
        attributes = getattr(owner, "__dict__", None)
        if isinstance(attributes, dict):
            attributes[path[-1]] = value  # not setattr: a frozen dataclass would refuse it


def _attributes(dataset: object) -> dict[Path, Any]:
    return {path: value for path, value in walk(dataset) if not any(name.startswith("[") for name in path)}


def _is_plain(value: object) -> bool:
    if type(value) not in _PLAIN:
        return False
    return not isinstance(value, (str, bytes)) or len(value) <= _PLAIN_LENGTH_MAX
