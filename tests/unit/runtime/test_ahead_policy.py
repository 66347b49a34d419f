"""When a step is applied ahead: only where it hides more than it costs."""

from __future__ import annotations

import pytest

from elastane.runtime.ahead_policy import BYTES_MAX, MEASURED, MEASURED_MIN, WAIT_SECONDS_MIN, AheadPolicy

SIZE = 1 << 20
LONG = 0.02


def policy(wait: float, *, copy: float | None = None, steps: int = MEASURED) -> AheadPolicy:
    made = AheadPolicy()
    for _ in range(steps):
        made.waited(wait)
        if copy is not None:
            made.copied(copy)
        made.stepped(is_asked=False)
    return made


def test_nothing_is_applied_ahead_before_waits_have_been_measured() -> None:
    assert not policy(LONG, steps=MEASURED_MIN - 1).wants(SIZE)
    assert policy(LONG, steps=MEASURED_MIN).wants(SIZE)


@pytest.mark.parametrize(
    ("wait", "copy", "wants"),
    [
        (LONG, None, True),
        (LONG, 0.009, True),
        (LONG, 0.011, False),  # the copy costs more than half of what it hides
        (0.0, None, False),
        (WAIT_SECONDS_MIN, 1e-5, True),
        (WAIT_SECONDS_MIN * 0.9, 1e-5, False),
    ],
)
def test_the_wait_must_be_longer_than_the_copy_takes(wait: float, copy: float | None, wants: bool) -> None:
    assert policy(wait, copy=copy).wants(SIZE) is wants


def test_a_long_wait_now_and_then_is_no_reason() -> None:
    made = policy(0.0)
    made.waited(1.0)
    assert not made.wants(SIZE)


def test_the_copy_is_bounded() -> None:
    made = policy(10.0)
    assert made.wants(BYTES_MAX) and not made.wants(BYTES_MAX + 1)
    off = AheadPolicy(0)
    for _ in range(MEASURED):
        off.waited(10.0)
    assert not off.may_pay and not off.wants(1)


def test_a_copy_that_was_never_made_is_judged_by_its_size() -> None:
    made = policy(0.004)
    assert made.wants(SIZE) and not made.wants(1 << 25)


def test_it_is_expected_that_the_next_step_is_wanted_as_the_last_one_was() -> None:
    made = policy(LONG)
    assert made.may_pay and not made.expects  # it is not known yet whether a step can be undone
    made.judged(is_wanted=True)
    assert made.expects
    made.stepped(is_asked=True)
    assert not made.expects
    made.stepped(is_asked=False)
    made.judged(is_wanted=False)
    assert not made.expects


def test_scripts_that_ask_wait_anyway() -> None:
    made = policy(LONG)
    made.stepped(is_asked=True)
    assert not made.wants(SIZE)
    made.stepped(is_asked=False)
    assert made.wants(SIZE)
