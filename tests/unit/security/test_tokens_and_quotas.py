"""The table of tokens and the accounts: decisions without a server."""

from __future__ import annotations

import contextlib
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_master.decisions.events import Rejection
from elastane_master.security import tokens as tokens_module
from elastane_master.security.quotas import QuotaBook
from elastane_master.security.tokens import BadTokenTable, Principal, Quotas, TokenTable, digest_of

SECRET = "a-secret-of-some-length"


def table(*changes: dict[str, object]) -> str:
    entries = []
    for number, change in enumerate(changes):
        fields = {"name": f"t{number}", "roles": ["worker"], "jobs": ["*"], "token": f"{SECRET}-{number}"}
        fields |= change
        lines = [
            f"{key} = {value if isinstance(value, list | float | int) else repr(value)}"
            for key, value in fields.items()
            if value is not None
        ]
        entries.append("\n".join(["[[token]]", *lines]))
    return "\n".join(entries)


def test_a_token_is_found_by_itself_or_by_its_digest() -> None:
    digest = hashlib.sha256(b"another-secret-token").hexdigest()
    found = TokenTable.parse(table({}, {"token": None, "sha256": digest, "sessions_max": 3}))
    assert found.find(digest_of(f"{SECRET}-0")).name == "t0"
    assert found.find(digest_of("another-secret-token")).quotas == Quotas(sessions_max=3)
    for wrong in ("", SECRET, f"{SECRET}-0 ", f"{SECRET}-1", "\udcff"):
        assert found.find(digest_of(wrong)) is None


def test_every_entry_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time a lookup takes tells neither whether a token is there nor where."""
    found = TokenTable.parse(table({}, {}, {}))
    compared = []
    compare = tokens_module.hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return compare(one, other)

    monkeypatch.setattr(tokens_module.hmac, "compare_digest", counting)
    for presented in (f"{SECRET}-0", f"{SECRET}-2", "nobody's"):
        compared.clear()
        found.find(digest_of(presented))
        assert len(compared) == 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "token"),
        ("token = []", "nobody could call this master"),
        ("[[token]\n", "line 1"),
        (table({"name": ""}), "name is empty"),
        (table({}, {"name": "t0"}), "another token has this name"),
        (table({}, {"token": f"{SECRET}-0"}), "are the same"),
        (table({"token": "short"}), "16 or more"),
        (table({"token": "with a space in the token"}), "no spaces"),
        (table({"token": None}), "either token or sha256"),
        (table({"sha256": "0" * 64}), "either token or sha256"),
        (table({"token": None, "sha256": "0" * 63}), "64 hexadecimal digits"),
        (table({"token": None, "sha256": "x" * 64}), "64 hexadecimal digits"),
        (table({"roles": []}), "needs roles and jobs"),
        (table({"jobs": []}), "needs roles and jobs"),
        (table({"roles": ["root"]}), "root"),
        (table({"sessions": 3}), "sessions"),
        (table({"sessions_max": -1}), "a quota is"),
        (table({"sessions_max": 1.5}), "int"),
    ],
)
def test_a_table_that_is_wrong_says_where_and_nothing_secret(text: str, why: str) -> None:
    with pytest.raises(BadTokenTable, match=why) as told:
        TokenTable.parse(text)
    assert SECRET not in str(told.value)


@given(st.text(max_size=200))
def test_any_text_is_a_table_or_a_typed_error(text: str) -> None:
    with contextlib.suppress(BadTokenTable):
        assert len(TokenTable.parse(text)) > 0


@pytest.mark.parametrize(
    ("patterns", "covered", "not_covered"),
    [
        (["digits"], ["digits"], ["Digits", "digits2", "", "x/digits"]),
        (["ci-*", "x?"], ["ci-", "ci-1", "xy"], ["ci", "x", "xyz", "my-ci-1"]),
        (["*"], ["anything"], []),
    ],
)
def test_patterns_of_jobs(patterns: list[str], covered: list[str], not_covered: list[str]) -> None:
    principal = TokenTable.parse(table({"jobs": patterns})).find(digest_of(f"{SECRET}-0"))
    assert [job for job in covered + not_covered if principal.covers(job)] == covered


# ---------------------------------------------------------------- quotas


def somebody(**quotas: float) -> Principal:
    return Principal("somebody", frozenset({"operator"}), ("mine-*",), Quotas(**quotas))


@given(
    rate=st.floats(0.1, 50),
    pauses=st.lists(st.floats(0, 5), min_size=1, max_size=60),
)
def test_no_stretch_of_time_has_more_requests_than_its_rate_and_a_burst(
    rate: float, pauses: list[float]
) -> None:
    book, now, taken = QuotaBook(), 0.0, []
    for pause in pauses:
        now += pause
        try:
            book.take_request(somebody(requests_per_second=rate), now)
        except Rejection as refused:
            assert refused.reason == "rate_limited"
            continue
        taken.append(now)
    burst = max(rate, 1.0)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + rate * (taken[last] - taken[first]) + 1e-6


def test_who_waits_as_long_as_told_is_served() -> None:
    book, caller = QuotaBook(), somebody(requests_per_second=2.0)
    now = 100.0
    for _ in range(2):
        book.take_request(caller, now)
    with pytest.raises(Rejection) as refused:
        book.take_request(caller, now)
    now += float(refused.value.facts["retry_after_seconds"]) + 0.001
    book.take_request(caller, now)
    book.take_request(somebody(), now)  # no quota, no account


def test_a_session_is_given_back_however_it_ends() -> None:
    book, caller = QuotaBook(), somebody(sessions_max=1)
    for _ in range(3):
        with pytest.raises(KeyError), book.session(caller, ("mine", "a")):
            with pytest.raises(Rejection), book.session(caller, ("mine", "b")):
                raise AssertionError("a second one at the same time")
            raise KeyError
    with book.session(caller, ("mine", "b")):
        pass


def test_a_worker_that_comes_back_takes_the_place_of_its_old_session() -> None:
    book, caller = QuotaBook(), somebody(sessions_max=1)
    with book.session(caller, ("mine", "a")):
        with book.session(caller, ("mine", "a")):
            pass
        with pytest.raises(Rejection), book.session(caller, ("yours", "a")):
            raise AssertionError("another job's worker of that name")


def test_jobs_of_other_patterns_do_not_count() -> None:
    book, caller = QuotaBook(), somebody(jobs_max=2)
    others = ["yours-1", "yours-2"]
    with book.making_job(caller, "mine-1", others), book.making_job(caller, "mine-1", others):
        with book.making_job(caller, "mine-2", others):
            with pytest.raises(Rejection), book.making_job(caller, "mine-3", others):
                raise AssertionError("a third one")
            with book.making_job(caller, "mine-9", [*others, "mine-9"]):
                pass  # it is there already: nothing is made
        with book.making_job(caller, "mine-3", others):
            pass
