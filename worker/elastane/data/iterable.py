"""IterableDatasets: each EST, or each of its streams, has a copy of the dataset and an iterator.

In a stock run every rank is a process with its own dataset, and so is each of its data workers. Here one
process serves several ESTs, so each gets a deep copy. To continue in the middle of an epoch, the copy is
brought to its position in the way of torchdata's StatefulDataLoader: the dataset's `load_state_dict`, then
`iter`, then the iterator's `load_state_dict`; it suffices if one of the two has states. If neither has, a
data worker repeats the epoch's batches from the start and discards them: its random numbers come from
base_seed alone, so they are the same. Without data workers they are not, and such a dataset is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Final

from torch.utils.data._utils.fetch import _IterableDatasetFetcher

from elastane.data.dataset_attributes import DatasetAttributes
from elastane.data.own_generators import OwnGenerators
from elastane.registry import from_bytes, has_state, to_bytes
from elastane_common.errors import UnsupportedError

ITERATOR: Final = "item/@iterator"
_KIND: Final = "iterator"


class StreamEnd:
    """Returned in place of a batch when the iterator is exhausted."""


class IterableStream:
    """A copy of the dataset and the iterator over it; call `begin` or `resume` before `fetch`."""

    def __init__(self, dataset: Any, *, auto_collation: bool, collate_fn: Any, drop_last: bool) -> None:
        self.dataset = dataset
        self._arguments = (auto_collation, collate_fn, drop_last)
        self._fetcher: _IterableDatasetFetcher | None = None
        self._own: OwnGenerators | None = None
        self._attributes: DatasetAttributes | None = None

    @property
    def begun(self) -> bool:
        """True if there is an iterator."""
        return self._fetcher is not None

    @property
    def stateful(self) -> bool:
        """True if dataset or iterator offer states."""
        return has_state(self.dataset) or (
            self._fetcher is not None and has_state(self._fetcher.dataset_iter)
        )

    def begin(self, registered: Iterable[object] = ()) -> None:
        """Create a new iterator, as at the start of an epoch."""
        if not has_state(self.dataset):
            # At most the iterator's state is kept, so its effects on the dataset must not matter.
            self._own = OwnGenerators(self.dataset, registered)
            self._attributes = DatasetAttributes(self.dataset)
        self._fetcher = _IterableDatasetFetcher(self.dataset, *self._arguments)
        if not self.stateful:
            # Without states the epoch is repeated from its start, which repeats such effects as well.
            self._own = self._attributes = None

    def resume(self, stored: bytes, registered: Iterable[object] = ()) -> None:
        """Restore the position captured by `state`."""
        state = _unpack(stored)
        if state["dataset"] is not None:
            self.dataset.load_state_dict(state["dataset"])
        self.begin(registered)
        assert self._fetcher is not None
        if state["iterator"] is not None:
            self._fetcher.dataset_iter.load_state_dict(state["iterator"])

    def resume_dataset(self, stored: bytes) -> None:
        """Restore the dataset as it was at the end of an epoch; a new iterator follows."""
        state = _unpack(stored)
        if state["dataset"] is not None:
            self.dataset.load_state_dict(state["dataset"])

    def fetch(self, index: Any) -> Any:
        """Return the next batch, or StreamEnd. Errors of the dataset pass through."""
        assert self._fetcher is not None, "not begun"
        try:
            batch = self._fetcher.fetch(index)
        except StopIteration:
            return StreamEnd()
        if self._own is not None:
            self._own.check()
        return batch

    def end(self) -> None:
        """End the epoch and drop the iterator, as stock does. Raises UnsupportedError.

        Changes that iterating made to the dataset would persist into the next epoch of a stock run, and are
        lost here unless the dataset has states.
        """
        self._fetcher = None
        changed = self._attributes.plain_changes() if self._attributes is not None else {}
        for path in changed:
            name = ".".join(("dataset", *path))
            raise UnsupportedError(
                f"iterating changed {name} of the IterableDataset, which only its own state could keep",
                hint="give the dataset state_dict and load_state_dict, or use num_workers=1 or more",
                attribute=name,
            )

    def state(self) -> bytes | None:
        """Return the position of dataset and iterator; None if neither offers states."""
        iterator = self._fetcher.dataset_iter if self._fetcher is not None else None
        dataset_state = iterator_state = None
        if iterator is not None and has_state(iterator):
            iterator_state = iterator.state_dict()
        if has_state(self.dataset) and iterator is not self.dataset:
            dataset_state = self.dataset.state_dict()
        if dataset_state is None and iterator_state is None:
            return None
        return to_bytes("@iterator", _KIND, {"dataset": dataset_state, "iterator": iterator_state})


def copied_dataset(dataset: Any, shared: Iterable[object]) -> Any:
    """Return a deep copy, except for `shared` objects (registered ones), which all copies have in common.

    Raises UnsupportedError if it cannot be copied.
    """
    try:
        return copy.deepcopy(dataset, {id(value): value for value in shared})
    except Exception as error:
        raise UnsupportedError(
            f"the IterableDataset, a {type(dataset).__name__}, cannot be copied: {error}",
            hint="every EST needs its own copy; open files and connections in __iter__, not in __init__",
            option="dataset",
        ) from error


def refuse_without_state() -> UnsupportedError:
    """Build the error for an IterableDataset that cannot be continued in the middle of an epoch."""
    return UnsupportedError(
        "the DataLoader's dataset is an IterableDataset without states, which cannot be continued "
        "in the middle of an epoch",
        hint="give it or its iterator state_dict and load_state_dict (as torchdata's StatefulDataLoader uses "
        "them), or use num_workers=1 or more",
        option="dataset",
    )


def _unpack(stored: bytes) -> dict[str, Any]:
    _, state = from_bytes("@iterator", stored)
    return dict(state)
