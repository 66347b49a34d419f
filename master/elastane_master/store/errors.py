"""Errors between the master and its store.

StoreError
+-- BadStoreUrl          --store is not a URL that the master supports
+-- BadJobName           a job's name cannot be part of a key
+-- StoreUnreachable     nothing answered at the URL within the time limit
+-- StoreRefused         the store rejects the credentials or the commands
+-- EmbeddedStoreFailed  the private server could not be started
+-- StoreFormatUnknown   the store was written by a newer master, or its bytes are corrupt
|   +-- JobTooNew        a newer master wrote a job
+-- StoreReadOnly        the store is a replica, or does not accept writes
+-- StoreIsCluster       the store is a cluster
+-- StoreIsSentinel      the store is a Sentinel, which stores nothing
+-- StoreMayEvict        the store evicts keys when its memory is full
+-- JobDamaged           the stored data of a job is incomplete
+-- StateDirInUse        another master serves the state directory
+-- AnotherLeads         another master leads the store, and this one must not wait
+-- Fenced               another master took the job over
+-- LogBroken            a bug ended the log's writer
+-- LogClosed            the log was closed before the record became durable
"""

# ruff: noqa: N818 - these are the protocol's words

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Damage:
    """Missing data of a job.

    key: of the store. sequence: number of the first missing write, commit or event; 0 if unknown. lost: what
    is lost with it, in words.
    """

    key: str
    sequence: int
    lost: str

    def __str__(self) -> str:
        return f"{self.key}: {self.lost}"


class StoreError(Exception):
    """Base class. Attributes: facts (names and values, for machines), hint (advice for the caller)."""

    code = "ELA210"
    hint = ""

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.hint = hint or self.hint
        self.facts = {name: str(value) for name, value in facts.items()}


class BadStoreUrl(StoreError, ValueError):
    code = "ELA211"
    hint = "use redis://HOST:PORT/0, rediss://HOST:PORT/0 or unix:///path/to/socket, or omit --store"


class BadJobName(StoreError, ValueError):
    code = "ELA212"
    hint = "a job's name has 1 to 63 characters out of A-Z a-z 0-9 . _ - and begins with a letter or digit"


class StoreUnreachable(StoreError):
    code = "ELA213"
    hint = "check that the server runs and that host, port and password are right"


class StoreRefused(StoreError):
    code = "ELA214"
    hint = (
        "check the user, the password and their rights in --store;"
        " it must be a single Redis or Valkey, not a cluster"
    )


class EmbeddedStoreFailed(StoreError):
    code = "ELA215"
    hint = "install valkey-server or redis-server, or name a running one with --store redis://HOST:PORT"


class StoreFormatUnknown(StoreError):
    code = "ELA216"
    hint = (
        "start a master at least as new as the one that wrote the store, which was not changed; "
        "corrupt data has to be restored from a backup"
    )


class JobTooNew(StoreFormatUnknown):
    """A job that only a newer master can read: never repaired or deleted by this one. Attributes: job."""

    code = "ELA435"
    hint = (
        "start a master at least as new as the one that wrote it, or restore a backup from before the"
        " upgrade; nothing of the job was changed, and `elastane repair` leaves it as it is"
    )

    def __init__(self, job: str, found: tuple[int, int], known: tuple[int, int], *, key: str) -> None:
        said = (
            f"job {job} was written by a newer master: {key} has {_form(found)};"
            f" this one reads up to {_form(known)}. Nothing of it was touched"
        )
        facts = {"found": f"{found[0]}.{found[1]}", "known": f"{known[0]}.{known[1]}"}
        super().__init__(said, job=job, keys=key, **facts)
        self.job = job


class StoreReadOnly(StoreError):
    code = "ELA430"
    hint = "name its primary in --store; a replica accepts no writes"


class StoreIsCluster(StoreError):
    code = "ELA431"
    hint = "name a single server in --store: a master keeps all its jobs on one"


class StoreIsSentinel(StoreError):
    code = "ELA432"
    hint = (
        "name the server itself in --store, by an address that follows the primary (a Service, a proxy);"
        " a Sentinel only knows where it is, and is not asked"
    )


class StoreMayEvict(StoreError):
    code = "ELA433"
    hint = (
        "CONFIG SET maxmemory-policy noeviction, in its configuration file too; then start the master again"
    )


class JobDamaged(StoreError):
    """The stored data of a job is incomplete. Attributes: job, damages (in the order found)."""

    code = "ELA434"
    hint = (
        "restore the named keys and run `elastane repair JOB`;"
        " or continue without what is lost: `elastane repair JOB --accept-loss`"
    )

    def __init__(self, job: str, damages: Sequence[Damage]) -> None:
        said = "; ".join(str(damage) for damage in damages)
        keys = ", ".join(dict.fromkeys(damage.key for damage in damages))
        super().__init__(f"job {job} is damaged: {said}", job=job, keys=keys)
        self.job = job
        self.damages = tuple(damages)


HeldError = JobDamaged | JobTooNew
"""Errors for which a job is held instead of served."""


def held_phase(error: HeldError) -> str:
    """Return the phase shown for a held job: "damaged" or "too_new"."""
    return "damaged" if isinstance(error, JobDamaged) else "too_new"


def _form(form: tuple[int, int]) -> str:
    return f"format {form[0]}, state {form[1]}"


class StateDirInUse(StoreError):
    code = "ELA217"
    hint = (
        "stop that one, or name another --state-dir; masters that stand by for one another need a"
        " separate store: --store redis://HOST:PORT"
    )


class AnotherLeads(StoreError):
    code = "ELA218"
    hint = "omit --no-standby to wait until it is gone"


class Fenced(StoreError):
    code = "ELA219"
    hint = "another master serves this store now; ask that one"


class LogBroken(StoreError):
    code = "ELA220"
    hint = "this is a bug in the master; start it again, what was acknowledged is stored"


class LogClosed(StoreError):
    code = "ELA221"
    hint = "the master is stopping; ask again"
