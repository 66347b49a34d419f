"""Rules of rows beside torch's, and beside one number at a time."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch

from elastane.tables.layout import PushPart, RowGradients
from elastane.tables.row_rules import halved_sum
from elastane.tables.slot_weights import SlotWeights
from elastane.tables.spec import DTYPES, ModelSpec, RowTable
from unit.tables.models import RATES, ids_of, push, rates

f32 = np.float32


def model(rule: str, width: int, dtype: str = "float32") -> ModelSpec:
    return ModelSpec(tables=(RowTable("users", 500, width, dtype=dtype, rule=rule),), slots=2, seed=7)


def pushes(width: int, dtype: str = "float32") -> list[tuple[np.ndarray, torch.Tensor]]:
    generator = torch.Generator().manual_seed(width)
    found = []
    for _ in range(6):
        ids = torch.randperm(500, generator=generator)[:120].sort().values
        found.append((ids.numpy(), torch.randn(120, width, generator=generator).to(DTYPES[dtype])))
    return found


def trained(spec: ModelSpec, told: list[tuple[np.ndarray, torch.Tensor]]) -> np.ndarray:
    """All rows after the pushes, each cut to its slots."""
    slots = [SlotWeights(spec, slot) for slot in range(spec.slots)]
    for ids, values in told:
        for slot, weights in enumerate(slots):
            own = np.isin(ids, ids_of(spec, 0, slot))
            part = PushPart({}, (RowGradients(0, ids[own], values[torch.from_numpy(own)]),))
            push(spec, weights, part)
    result = torch.zeros(500, spec.tables[0].width, dtype=DTYPES[spec.tables[0].dtype])
    for slot, weights in enumerate(slots):
        ids = ids_of(spec, 0, slot)
        out = torch.zeros(len(ids), spec.tables[0].width, dtype=result.dtype)
        weights.pull_rows(0, ids, memoryview(out.view(torch.uint8).numpy()).cast("B"))
        result[torch.from_numpy(ids)] = out
    return result.numpy()


def start(spec: ModelSpec) -> np.ndarray:
    return trained(spec, [])


@pytest.mark.parametrize("width", [1, 3, 16, 17, 64])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sgd_has_the_bits_of_torch_on_a_coalesced_gradient(width: int, dtype: str) -> None:
    spec = model("row_sgd", width, dtype)
    stock = torch.nn.Parameter(torch.from_numpy(start(spec)))
    optimizer = torch.optim.SGD([stock], lr=RATES["row_sgd"]["lr"])
    for ids, values in pushes(width, dtype):
        index = torch.from_numpy(ids)[None]
        stock.grad = torch.sparse_coo_tensor(index, values, stock.shape, check_invariants=True).coalesce()
        optimizer.step()
    assert trained(spec, pushes(width, dtype)).tobytes() == stock.detach().numpy().tobytes()


def test_rowwise_adagrad_is_its_formula_number_by_number() -> None:
    spec = model("rowwise_adagrad", 5)
    rows, sums = start(spec), np.full(500, 0.1, f32)
    for ids, gradients in pushes(5):
        for row, gradient in zip(ids, gradients.numpy(), strict=True):
            s = [x * x for x in gradient]
            total = ((s[0] + s[4]) + s[2]) + (s[1] + s[3])  # halves of 8: (0+4, 1, 2, 3), then (0+2, 1+3)
            sums[row] = sums[row] + total / f32(5)
            for j in range(5):
                rows[row, j] -= gradient[j] / (np.sqrt(sums[row]) + f32(1e-10)) * f32(0.1)
    assert trained(spec, pushes(5)).tobytes() == rows.tobytes()


def test_lazy_adam_is_its_formula_number_by_number_with_a_count_for_each_row() -> None:
    spec = model("lazy_adam", 4)
    rows = start(spec)
    m, v, t = np.zeros((500, 4), f32), np.zeros((500, 4), f32), [0] * 500
    for ids, gradients in pushes(4):
        for row, gradient in zip(ids, gradients.numpy(), strict=True):
            t[row] += 1
            size, root = f32(0.01 / (1 - 0.9 ** t[row])), f32(sqrt(1 - 0.999 ** t[row]))
            for j, g in enumerate(gradient):
                m[row, j] += (g - m[row, j]) * f32(1 - 0.9)
                v[row, j] = v[row, j] * f32(0.999) + g * g * f32(1 - 0.999)
                rows[row, j] -= m[row, j] / (np.sqrt(v[row, j]) / root + f32(1e-8)) * size
    assert trained(spec, pushes(4)).tobytes() == rows.tobytes()


def test_lazy_adam_of_rows_that_are_always_there_is_near_torchs_adam() -> None:
    spec = model("lazy_adam", 4)
    stock = torch.nn.Parameter(torch.from_numpy(start(spec)))
    optimizer = torch.optim.Adam([stock], lr=0.01)
    generator = torch.Generator().manual_seed(2)
    told = [(np.arange(500), torch.randn(500, 4, generator=generator)) for _ in range(10)]
    for _, values in told:
        stock.grad = values
        optimizer.step()
    np.testing.assert_allclose(trained(spec, told), stock.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", range(1, 40))
def test_the_sum_of_a_row_does_not_depend_on_the_others(width: int) -> None:
    values = np.random.default_rng(width).standard_normal((33, width)).astype(f32)
    together = halved_sum(values)
    assert all(halved_sum(values[i : i + 1])[0] == together[i] for i in range(33))
    np.testing.assert_allclose(together, values.sum(axis=1), rtol=1e-4, atol=1e-5)


def test_scaled_pushes_have_a_smaller_learning_rate() -> None:
    spec = model("row_sgd", 2)
    ids = ids_of(spec, 0, 0, 3)
    part = PushPart({}, (RowGradients(0, ids, torch.ones(3, 2)),))
    moved = []
    for scale in (1.0, 0.25):
        weights = SlotWeights(spec, 0)
        before, after = bytearray(24), bytearray(24)
        weights.pull_rows(0, ids, memoryview(before))
        weights.apply(weights.prepare(part, rates(spec)), rates(spec), scale)
        weights.pull_rows(0, ids, memoryview(after))
        moved.append(np.frombuffer(before, f32) - np.frombuffer(after, f32))
    np.testing.assert_allclose(moved[0], 4 * moved[1], rtol=1e-4)
