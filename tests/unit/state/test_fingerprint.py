"""The fingerprint follows its published rule, and moves with every bit it stands for."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from torch import nn

from elastane.state.codec import flat_bytes
from elastane.state.fingerprint import fingerprint
from unit.state.models import Net, build, train


def record(*fields: object, data: bytes = b"") -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n" + data


def test_weights_and_buffers_follow_the_rule() -> None:
    model = nn.BatchNorm1d(2)
    model.weight.data = torch.tensor([1.0, 2.0])
    one_two = bytes.fromhex("0000803f00000040")
    weights = record("tensor", "bias", "float32", [2], data=bytes(8))
    weights += record("tensor", "weight", "float32", [2], data=one_two)
    buffers = record("tensor", "num_batches_tracked", "int64", [], data=bytes(8))
    buffers += record("tensor", "running_mean", "float32", [2], data=bytes(8))
    buffers += record("tensor", "running_var", "float32", [2], data=bytes.fromhex("0000803f") * 2)
    found = fingerprint(model)
    assert found["weights"] == hashlib.sha256(weights).hexdigest()
    assert found["buffers"] == hashlib.sha256(buffers).hexdigest()
    assert found["optimizer"] == hashlib.sha256().hexdigest()


def test_the_optimizer_follows_the_rule() -> None:
    class Tiny:
        def state_dict(self) -> dict[str, object]:
            state = {0: {"step": torch.tensor(1.0)}}
            return {"state": state, "param_groups": [{"lr": 0.5, "betas": (1, None), "fused": True}]}

    expected = b"".join(
        [
            record("dict", "0", 2),
            record("list", "0/param_groups", 1),
            record("dict", "0/param_groups/0", 3),
            record("tuple", "0/param_groups/0/betas", 2),
            record("int", "0/param_groups/0/betas/0", 1),
            record("NoneType", "0/param_groups/0/betas/1", None),
            record("bool", "0/param_groups/0/fused", True),
            record("float", "0/param_groups/0/lr", "0x1.0000000000000p-1"),
            record("dict", "0/state", 1),
            record("dict", "0/state/0", 1),
            record("tensor", "0/state/0/step", "float32", [], data=bytes.fromhex("0000803f")),
        ]
    )
    assert fingerprint(nn.Identity(), [Tiny()])["optimizer"] == hashlib.sha256(expected).hexdigest()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_each_part_sees_its_own_changes_only(dtype: torch.dtype) -> None:
    state = build(dtype=dtype)
    train(state, range(2))
    weight = state.model.convolution.weight
    optimizer = state.optimizers[0]

    def moved(change: object) -> set[str]:
        before = state.fingerprint()
        change()  # type: ignore[operator]
        after = state.fingerprint()
        return {part for part in before if before[part] != after[part]}

    bit = flat_bytes(weight)
    assert moved(lambda: bit[0].bitwise_xor_(1)) == {"weights"}
    assert moved(lambda: state.model.norm.running_var.mul_(2)) == {"buffers"}
    assert moved(lambda: state.model.calls.add_(1)) == {"buffers"}
    assert moved(lambda: optimizer.state[weight]["step"].add_(1)) == {"optimizer"}
    assert moved(lambda: optimizer.param_groups[1].update(lr=0.010000000000000002)) == {"optimizer"}
    assert moved(lambda: None) == set()


def test_strides_do_not_enter() -> None:
    torch.manual_seed(0)
    model = Net()
    before = fingerprint(model)
    assert not model.convolution.weight.is_contiguous()
    model.to(memory_format=torch.contiguous_format)
    assert fingerprint(model) == before
