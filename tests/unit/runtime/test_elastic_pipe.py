"""What the pipe of a worker refuses in the loop body."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from elastane.pipeline.units import Units
from elastane.runtime.pipelines.elastic_pipe import ElasticPipe
from elastane.runtime.pipelines.errors import PipelineBodyError


def test_which_units_are_here_decides_nothing_in_the_loop_body() -> None:
    runner: Any = SimpleNamespace(est_step=None)
    units = Units.build([nn.Linear(2, 2), nn.Linear(2, 1)])
    units.hold([1])
    units.initialise(1)
    pipe = ElasticPipe(units, runner, None, nn.MSELoss())  # type: ignore[arg-type]
    assert pipe.held == {1} and list(pipe.held_state_dict()) == ["1.weight", "1.bias"]
    runner.est_step = object()
    with pytest.raises(PipelineBodyError, match=r"the loop body reads pipe\.held, which differs"):
        _ = pipe.held
    with pytest.raises(PipelineBodyError, match=r"reads pipe\.held_state_dict\(\)"):
        pipe.held_state_dict()
