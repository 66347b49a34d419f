"""On which side of 128 each end of an agent is."""

from __future__ import annotations

import pytest

from elastane_common.exit_codes import CODE_NO_JOB, CODE_UNREACHABLE, TRANSIENT, exit_code


@pytest.mark.parametrize(("code", "in_a_pod"), [(CODE_UNREACHABLE, 204), (CODE_NO_JOB, 206)])
def test_what_may_pass_is_retryable_in_a_pod_only(code: int, in_a_pod: int) -> None:
    assert exit_code(code, "pod") == in_a_pod
    assert exit_code(code, "shell") == code


def test_everything_else_is_the_same_for_both() -> None:
    for code in set(range(256)) - TRANSIENT:
        assert exit_code(code, "pod") == exit_code(code, "shell") == code
