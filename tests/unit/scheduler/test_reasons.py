"""Reasons: none is empty, each names its job, devices and seconds."""

from __future__ import annotations

import random
import re

import pytest

from elastane_scheduler.policies.catalogue import POLICIES, make_policy
from elastane_scheduler.reasons import reasons
from unit.scheduler.worlds import decisions


@pytest.mark.parametrize("name", POLICIES)
def test_every_job_has_a_reason(name: str) -> None:
    kinds = set()
    for seed in range(12):
        for view, decision in decisions(make_policy(name), random.Random(seed), 12):
            found = reasons(view, decision)
            assert len(found) == len(view.jobs)
            for state, devices, reason in zip(view.jobs, decision.allocation, found, strict=True):
                assert reason.text.startswith(f"{state.name} ")
                assert any(kind in reason.text for kind in (*view.pool.types, "no devices"))
                assert re.search(r"\d+ s\b|never ends", reason.text), reason.text
                waits = re.search(r" behind (job-\d+)", reason.text)
                if waits:
                    assert waits[1] != state.name and not any(devices)
                kinds.add(reason.text.split()[1])
    assert {"gets", "keeps", "has"} <= kinds


def test_foresight_says_what_it_rejected() -> None:
    rejected = [
        text
        for seed in range(5)
        for _, decision in decisions(make_policy("foresight"), random.Random(seed), 15)
        for text in decision.rejected
    ]
    assert rejected and all(re.fullmatch(r".+: (\+\d+ s|worse, cut off)", text) for text in rejected)
