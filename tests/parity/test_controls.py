"""`make controls` takes a quarter of an hour; that its detectors are where it looks for them is seen here."""

from __future__ import annotations

import pytest

from parity.controls import CONTROLS, GALLERY, Control


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.detector)
def test_a_detector_can_be_taken_out(control: Control) -> None:
    assert (GALLERY / control.command.split()[0]).exists()
    for mutant in control.off:
        assert mutant.applied(mutant.path().read_text()) != mutant.path().read_text()
