"""The table of tokens: names, roles, jobs and quotas of their owners.

    [[token]]
    name = "ci"                       # appears in logs and refusals; the token itself never does
    sha256 = "9f86d081..."            # of the token; or: token = "..."
    roles = ["operator", "worker"]    # worker, operator, reader; of the training service: submitter, runner
    jobs = ["digits", "ci-*"]         # names or patterns of them; ["*"]: every job
    owners = ["ci", "vision-*"]       # whose runs of the training service it is for; left out: its own name's
    requests_per_second = 50          # quotas; left out or 0: none
    sessions_max = 8                  # sessions of workers at a time
    jobs_max = 3                      # jobs of this table's patterns on the master
    datasets_max = 10                 # datasets of one job
    runs_max = 20                     # runs of the training service that wait or run, of its own name
    slots_max = 8                     # slots that these use at a time

Pure: text in, table out. Tokens are compared by their digests, always with every entry, in a time that does
not depend on them.
"""

from __future__ import annotations

import hashlib
import hmac
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal, get_args

import msgspec

Role = Literal["worker", "operator", "reader", "submitter", "runner"]

_WITHOUT_JOBS: frozenset[Role] = frozenset({"submitter", "runner"})
"""Roles of the training service, whose tokens need no jobs of their own."""

TOKEN_CHARACTERS_MIN = 16
"""Minimum length, because shorter tokens could be guessed; `elastane token` creates 43 characters."""


class BadTokenTable(ValueError):  # noqa: N818 - says what is wrong
    """The text is not a valid table of tokens; the message says where and why, without secrets."""


class Quotas(msgspec.Struct, frozen=True):
    """Quotas of one token; 0: no limit.

    datasets_max: per job. runs_max: its own unfinished runs. slots_max: used by these at a time.
    """

    requests_per_second: float = 0.0
    sessions_max: int = 0
    jobs_max: int = 0
    datasets_max: int = 0
    runs_max: int = 0
    slots_max: int = 0


class Principal(msgspec.Struct, frozen=True):
    """Owner of a token. jobs, owners: case-sensitive fnmatch patterns."""

    name: str
    roles: frozenset[Role]
    jobs: tuple[str, ...]
    quotas: Quotas = Quotas()
    owners: tuple[str, ...] = ()

    def covers(self, job: str) -> bool:
        """True if the token covers this job."""
        return any(fnmatchcase(job, pattern) for pattern in self.jobs)

    def covers_owner(self, owner: str) -> bool:
        """True if the token is for runs of this owner."""
        return owner == self.name or any(fnmatchcase(owner, pattern) for pattern in self.owners)


ANYBODY = Principal("anybody", frozenset(get_args(Role)), ("*",), owners=("*",))
"""Every caller of a master without tokens."""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    roles: list[Role]
    jobs: list[str] = []
    owners: list[str] = []
    token: str = ""
    sha256: str = ""
    requests_per_second: float = 0.0
    sessions_max: int = 0
    jobs_max: int = 0
    datasets_max: int = 0
    runs_max: int = 0
    slots_max: int = 0

    @property
    def quotas(self) -> Quotas:
        return Quotas(*(getattr(self, name) for name in Quotas.__struct_fields__))


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: list[_Entry]


class TokenTable:
    """All tokens of a master. Immutable; a changed file makes a new table."""

    def __init__(self, entries: Iterable[tuple[bytes, Principal]], *, plain: bool = False) -> None:
        self._entries = tuple(entries)
        #: True if the file contains tokens in clear text, not only their digests.
        self.plain = plain

    @classmethod
    def parse(cls, text: str) -> TokenTable:
        """Parse the text of a table. Raises BadTokenTable."""
        try:
            file = msgspec.convert(tomllib.loads(text), _File)
        except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            raise BadTokenTable(str(error)) from None
        entries: dict[bytes, Principal] = {}
        names: set[str] = set()
        for number, entry in enumerate(file.token, start=1):
            digest = _checked_digest(entry, f"token {number} ({entry.name or 'without a name'})", names)
            if digest in entries:
                raise BadTokenTable(f"tokens {entries[digest].name} and {entry.name} are the same")
            names.add(entry.name)
            entries[digest] = Principal(
                entry.name,
                frozenset(entry.roles),
                tuple(entry.jobs),
                entry.quotas,
                tuple(entry.owners),
            )
        if not entries:
            raise BadTokenTable("it has no tokens: nobody could call this master")
        return cls(entries.items(), plain=any(entry.token for entry in file.token))

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, digest: bytes) -> Principal | None:
        """Return the owner of the token with this digest, or None. Compares with every entry in any case."""
        found = None
        for known, principal in self._entries:
            if hmac.compare_digest(known, digest):
                found = principal
        return found


def digest_of(token: str) -> bytes:
    """Return the digest by which a token is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _checked_digest(entry: _Entry, which: str, names: set[str]) -> bytes:
    if not entry.name:
        raise BadTokenTable(f"{which}: name is empty")
    if entry.name in names:
        raise BadTokenTable(f"{which}: another token has this name")
    if not entry.roles or not (entry.jobs or _WITHOUT_JOBS.issuperset(entry.roles)):
        raise BadTokenTable(f'{which}: it needs roles and jobs; jobs = ["*"] means all')
    if not all(0 <= number < float("inf") for number in msgspec.structs.astuple(entry.quotas)):
        raise BadTokenTable(f"{which}: a quota is a number from 0 on")
    if bool(entry.token) == bool(entry.sha256):
        raise BadTokenTable(f"{which}: give either token or sha256")
    if entry.token:
        if len(entry.token) < TOKEN_CHARACTERS_MIN or not entry.token.isascii() or " " in entry.token:
            raise BadTokenTable(
                f"{which}: the token needs {TOKEN_CHARACTERS_MIN} or more ASCII characters, no spaces"
            )
        return digest_of(entry.token)
    try:
        digest = bytes.fromhex(entry.sha256)
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise BadTokenTable(f"{which}: sha256 is not 64 hexadecimal digits")
    return digest
