"""SIGKILL at every moment of writing a checkpoint: what is there before or after it is always usable."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from elastane.state.checkpoint import list_checkpoints, load_newest
from elastane.state.codec import decode
from unit.state.checkpoints import CONTEXTS, save

KEEP = 2
SIZE_CHANGING = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.fsync"}


def save_in_child(url: str, step: int, *, kill_before: int | None) -> bool:
    """Saves in a forked process that is killed just before its given file operation; False if it was."""
    child = os.fork()
    if child == 0:
        operations = itertools.count()

        def audit(event: str, _arguments: object = None) -> None:
            if event in SIZE_CHANGING and next(operations) == kill_before:
                os.kill(os.getpid(), signal.SIGKILL)

        sync = os.fsync
        os.fsync = lambda descriptor: (audit("os.fsync"), sync(descriptor))[1]  # type: ignore[assignment]
        sys.addaudithook(audit)
        try:
            save(url, step, shards=2, keep=KEEP)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return not os.WIFSIGNALED(status)


def check(url: str, *, newest: int) -> int:
    """The newest checkpoint is that step or the one before, whole; returns which."""
    loaded = load_newest(url)
    assert loaded is not None and loaded.rejected == () and loaded.step in (newest, newest - 1)
    assert loaded.contexts == CONTEXTS
    assert torch.equal(decode(loaded.exported)["weight"], torch.full((3000,), float(loaded.step)))
    return loaded.step


def test_killed_before_each_file_operation(tmp_path: Path) -> None:
    url = str(tmp_path)
    save(url, 0, shards=2, keep=KEEP)
    save(url, 1, shards=2, keep=KEEP)
    step, outcomes = 1, []
    for kill_before in itertools.count():
        step += 1
        survived = save_in_child(url, step, kill_before=kill_before)
        outcomes.append(check(url, newest=step) == step)
        assert sum(checkpoint.complete for checkpoint in list_checkpoints(url)) >= KEEP
        step += 1
        save(url, step, shards=2, keep=KEEP)
        assert [c.complete for c in list_checkpoints(url)] == [True] * KEEP
        assert not list(tmp_path.rglob("*.tmp"))
        if survived:
            break
    # Killed early it does not exist, killed late (while the old ones are removed) it does.
    assert outcomes == sorted(outcomes) and outcomes[0] is False and outcomes[-2] is True
    assert len(outcomes) > 20


def test_killed_at_random_moments(tmp_path: Path) -> None:
    url, dice = str(tmp_path), random.Random(7)
    begun = time.monotonic()
    save(url, 0, shards=2, keep=KEEP)
    usual_seconds = time.monotonic() - begun
    newest = 0
    for step in range(1, 25):
        child = os.fork()
        if child == 0:
            try:
                save(url, step, shards=2, keep=KEEP)
            finally:
                os._exit(0)
        time.sleep(dice.random() * usual_seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        loaded = load_newest(url)
        assert loaded is not None and loaded.rejected == () and loaded.step in (step, newest)
        newest = loaded.step
