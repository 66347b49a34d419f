"""What `elastane doctor` says of a model at parameter servers."""

from __future__ import annotations

import pytest
import torch

from elastane.diagnose.findings import Severity
from elastane.diagnose.ps_findings import dense_bytes, findings, full_bytes
from elastane.runtime.slots.model import PsArguments, model_parts
from elastane.runtime.slots.row_optimizer import RowOptimizer
from elastane.tables.spec import ModelSpec

ROWS = 10**6


def spec(rule: str, dense: int = 1000) -> ModelSpec:
    table = torch.nn.Embedding(ROWS, 16, sparse=True, device="meta")
    layer = torch.nn.Linear(dense, 1, bias=False)
    optimizers = [torch.optim.Adam(layer.parameters()), RowOptimizer(table.parameters(), rule, lr=0.1)]
    parts = model_parts(
        PsArguments(torch.nn.ModuleList([table, layer]), optimizers, None, None), slots=4, seed=0
    )
    return parts.spec


@pytest.mark.parametrize(
    ("rule", "row_bytes"), [("sgd", 64), ("rowwise_adagrad", 64 + 4), ("lazy_adam", 3 * 64 + 4)]
)
def test_memory_is_that_of_weights_and_states(rule: str, row_bytes: int) -> None:
    model = spec(rule)
    assert dense_bytes(model) == 4000
    assert full_bytes(model) == 3 * 4000 + ROWS * row_bytes
    assert not list(findings(model, memory_bytes=2**40)) and not list(findings(model, memory_bytes=0))


def test_a_model_beyond_the_memory_says_how_many_machines_hold_it() -> None:
    (said,) = findings(spec("sgd"), memory_bytes=ROWS * 30)
    assert said.severity is Severity.NOTE and "at least 3 machines" in said.todo


def test_much_dense_weight_costs_every_task() -> None:
    (said,) = findings(spec("sgd", dense=20 * 2**20), memory_bytes=2**40)
    assert said.severity is Severity.COSTS and "80 MiB of dense weights" in said.what
