"""Access rules of the HTTP port's routes."""

from __future__ import annotations

import pytest

from elastane_master.decisions.events import Rejection
from elastane_master.security.policy import HTTP_RULES, RULES, http_rule_of, require_role
from elastane_master.security.tokens import Principal, Role

SEEN_BY: dict[str, set[str]] = {
    "/metrics": {"reader", "operator"},
    "/": {"reader", "operator"},
    "/live": {"reader", "operator"},
    "/jobs/{job}": {"reader", "operator"},
    "/jobs/{job}/live": {"reader", "operator"},
    "/jobs/{job}/output": {"reader", "operator"},
    "/runs": {"submitter", "reader", "operator"},
    "/runs/live": {"submitter", "reader", "operator"},
    "/runs/{run}": {"submitter", "reader", "operator"},
    "/runs/{run}/live": {"submitter", "reader", "operator"},
    "/login": {"submitter", "reader", "operator"},
}


@pytest.mark.parametrize("role", ["worker", "operator", "reader", "submitter", "runner"])
def test_each_role_sees_what_it_may_and_nothing_else(role: Role) -> None:
    caller = Principal("c", frozenset({role}), ("*",))
    assert HTTP_RULES.keys() == SEEN_BY.keys()
    for route, rule in HTTP_RULES.items():
        if role in SEEN_BY[route]:
            require_role(rule, route, caller)
            continue
        with pytest.raises(Rejection) as refused:
            require_role(rule, route, caller)
        assert refused.value.reason == "permission_denied"


def test_pages_of_runs_are_for_owners_as_the_rpcs_are() -> None:
    rpcs = {RULES[f"/elastane.v1.TrainingService/{name}"] for name in ("List", "Watch", "StreamLogs")}
    pages = {rule for route, rule in HTTP_RULES.items() if route.startswith("/runs")}
    assert pages == rpcs


def test_a_route_without_a_rule_is_for_nobody() -> None:
    with pytest.raises(Rejection) as refused:
        http_rule_of("/new")
    assert refused.value.reason == "permission_denied"
