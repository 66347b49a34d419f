"""Names in the state_dict that `elastane ps export` writes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elastane.runtime.slots.model import PsArguments, model_parts
from elastane_cli.slot_export import weight_of


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Embedding(9, 2, sparse=True), nn.Linear(2, 1)),
        nn.EmbeddingBag(9, 2, sparse=True),
    ],
)
def test_names_are_those_that_load_state_dict_expects(net: nn.Module) -> None:
    spec = model_parts(PsArguments(net, torch.optim.SGD(net.parameters(), lr=0.1))).spec
    names = [tensor.name for tensor in spec.tensors] + [weight_of(table.name) for table in spec.tables]
    assert sorted(names) == sorted(net.state_dict())
