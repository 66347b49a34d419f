"""What can go wrong between the master and its store, as typed errors that carry the facts.

StoreError
+-- BadStoreUrl          --store is not a URL the master understands
+-- BadJobName           a job's name cannot be part of a key
+-- StoreUnreachable     nothing answered at the URL within the time allowed
+-- EmbeddedStoreFailed  the private server could not be started
+-- StoreFormatUnknown   the store was written by a newer master, or its bytes are spoiled
+-- StateDirInUse        another master serves the state directory
+-- AnotherLeads         another master leads the store, and this one was told not to wait
+-- Fenced               another master took the job over
+-- LogClosed            the log was closed before the record became durable
"""

# ruff: noqa: N818 - these are the protocol's words

from __future__ import annotations


class StoreError(Exception):
    """Base. Attributes: facts (names and values, for machines), hint (what the caller can do)."""

    code = "ELA210"
    hint = ""

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.hint = hint or self.hint
        self.facts = {name: str(value) for name, value in facts.items()}


class BadStoreUrl(StoreError, ValueError):
    code = "ELA211"
    hint = "use redis://HOST:PORT/0, rediss://HOST:PORT/0 or unix:///path/to/socket, or leave --store away"


class BadJobName(StoreError, ValueError):
    code = "ELA212"
    hint = "a job's name has 1 to 63 characters out of A-Z a-z 0-9 . _ - and begins with a letter or digit"


class StoreUnreachable(StoreError):
    code = "ELA213"
    hint = "check that the server runs and that host, port and password are right"


class StoreRefused(StoreError):
    code = "ELA214"
    hint = (
        "check the user, the password and their rights in --store; it must be a Redis or Valkey, no cluster"
    )


class EmbeddedStoreFailed(StoreError):
    code = "ELA215"
    hint = "install valkey-server or redis-server, or name a running one with --store redis://HOST:PORT"


class StoreFormatUnknown(StoreError):
    code = "ELA216"
    hint = (
        "start a master at least as new as the one that wrote the store, which is as it was; "
        "spoiled bytes need a backup"
    )


class StateDirInUse(StoreError):
    code = "ELA217"
    hint = (
        "end that one, or name another --state-dir; masters that stand by for each other need a store of"
        " their own: --store redis://HOST:PORT"
    )


class AnotherLeads(StoreError):
    code = "ELA218"
    hint = "leave --no-standby away to wait until it is gone"


class Fenced(StoreError):
    code = "ELA219"
    hint = "another master serves this store now; ask that one"


class LogBroken(StoreError):
    code = "ELA220"
    hint = "this is a fault of the master; start it again, what was acknowledged is stored"


class LogClosed(StoreError):
    code = "ELA221"
    hint = "the master is stopping; ask again"
