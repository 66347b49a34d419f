"""Interface of faults.

A fault is a context manager: it injects the fault before it yields, and ends it when the block is left. The
yielded value says what must follow from it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from elastane_cli.rehearse.cluster import LocalCluster

Cluster = TypeVar("Cluster", bound=LocalCluster)


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """An injected fault.

    at: time.monotonic() of the injection. changes_ring: a member is lost, so that only a step of the next
    ring shows recovery. newcomers: one of them must be in that ring. hold_seconds: duration of the fault,
    None: until a step has been committed after it. may_rewind: all weights are lost, and history is rewound
    to a checkpoint. may_forget: the store itself lost its last writes. expects: kinds of events that must
    report it. check: called after it; returns a problem, or "".
    """

    at: float
    detail: str
    changes_ring: bool = False
    newcomers: frozenset[str] = frozenset()
    hold_seconds: float | None = 0.0
    may_rewind: bool = False
    may_forget: bool = False
    expects: tuple[str, ...] = ()
    check: Callable[[], str] = lambda: ""


@dataclass(frozen=True, slots=True)
class Fault(Generic[Cluster]):
    """One kind of fault. missing: returns why a cluster cannot inject it, or ""."""

    name: str
    text: str
    act: Callable[[Cluster, random.Random], AbstractContextManager[ActiveFault]]
    missing: Callable[[Cluster], str] = lambda cluster: ""


@contextmanager
def kill_master(cluster: LocalCluster, rng: random.Random) -> Iterator[ActiveFault]:
    """SIGKILL the master and restart it."""
    at = time.monotonic()
    cluster.restart_master()
    yield ActiveFault(at, "kill -9 the master, start it", expects=("master_recovered",))
