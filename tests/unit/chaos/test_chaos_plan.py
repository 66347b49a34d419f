"""The order of faults, the choice of them, and what a result says of them."""

from __future__ import annotations

from collections import Counter

import pytest

from elastane_cli.chaos.plan import ChaosResult, Deck, FaultsError, Injection, RunSummary, choose

NAMES = ["a", "b", "c", "d", "e"]


def test_every_fault_is_injected_once_before_any_is_injected_again() -> None:
    deck = Deck("7", NAMES)
    assert deck.size == 5
    drawn = [deck.draw() for _ in range(15)]
    assert [sorted(drawn[i : i + 5]) for i in (0, 5, 10)] == [NAMES] * 3
    assert drawn[:5] != drawn[5:10]


def test_equal_seeds_give_equal_orders() -> None:
    one, two, other = Deck("7", NAMES), Deck("7", NAMES), Deck("8", NAMES)
    drawn = [one.draw() for _ in range(20)]
    assert drawn == [two.draw() for _ in range(20)]
    assert drawn != [other.draw() for _ in range(20)]


def test_a_fault_that_came_too_late_is_the_next() -> None:
    deck = Deck("7", NAMES)
    first = deck.draw()
    deck.put_back(first)
    assert Counter([deck.draw() for _ in range(5)]) == Counter(NAMES)


def test_without_faults_there_is_no_deck() -> None:
    with pytest.raises(FaultsError):
        Deck("7", [])


def test_choice_of_faults() -> None:
    assert choose("", NAMES) == NAMES
    assert choose(" b , a,b", NAMES) == ["b", "a"]
    with pytest.raises(FaultsError, match="'x'") as refused:
        choose("a,x", NAMES)
    assert "a, b, c" in refused.value.hint


def injection(fault: str, seconds: float | None, *problems: str) -> Injection:
    return Injection(fault, 1, 3, f"{fault} injected", 1.0, seconds, problems)


def summary(**changes: object) -> RunSummary:
    fields = {
        "run": 1, "steps": 9, "entries": 27, "lost": 0, "repeated": 0, "differing": (), "violations": (),
        "traced_steps": 9, "seconds": 2.0,
    }  # fmt: skip
    return RunSummary(**(fields | changes))  # type: ignore[arg-type]


def result(injections: list[Injection], runs: list[RunSummary]) -> ChaosResult:
    return ChaosResult("1", 3, 9, 10.0, tuple(injections), tuple(runs))


def test_summary_by_fault() -> None:
    found = result([injection("a", 3.0), injection("b", None), injection("a", 1.0), injection("a", 2.0)], [])
    a, b = found.by_fault()
    assert (a.fault, a.times, a.seconds, a.median_seconds) == ("a", 3, (1.0, 2.0, 3.0), 2.0)
    assert (b.fault, b.times, b.seconds, b.median_seconds) == ("b", 1, (), None)


@pytest.mark.parametrize(
    "broken",
    [
        result([injection("a", 1.0, "a step went back")], [summary()]),
        result([injection("a", 1.0)], [summary(differing=("weights",))]),
        result([injection("a", 1.0)], [summary(lost=1)]),
        result([injection("a", 1.0)], [summary(), summary(repeated=1)]),
        result([injection("a", 1.0)], [summary(violations=("epoch 1: a hole",))]),
    ],
)
def test_one_broken_promise_is_a_failure(broken: ChaosResult) -> None:
    assert (broken.ok, broken.exit_code, broken.as_json()["ok"]) == (False, 1, False)


def test_all_held() -> None:
    assert result([injection("a", 1.0)], [summary()]).exit_code == 0
