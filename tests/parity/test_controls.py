"""Checks that the mutants of `make controls` still apply; the command itself takes a quarter of an hour."""

from __future__ import annotations

import pytest

from parity.controls import CONTROLS, GALLERY, Control


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.detector)
def test_a_detector_can_be_taken_out(control: Control) -> None:
    assert (GALLERY / control.command.split()[0]).exists()
    for mutant in control.off:
        assert mutant.applied(mutant.path().read_text()) != mutant.path().read_text()
