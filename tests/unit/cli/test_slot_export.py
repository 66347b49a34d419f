"""Names in the state_dict that `elastane ps export` writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from elastane.runtime.slots.model import PsArguments, model_parts
from elastane.tables.spec import weight_of
from elastane.tables.spec_proto import to_proto
from elastane_cli import slot_export
from elastane_cli.slot_export import PartialStateError, export_state
from elastane_proto.v1 import ps_pb2


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


def test_keys_that_are_in_no_slot_are_named_and_left_out_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def build() -> nn.Module:
        net = nn.ModuleDict({"first": nn.Linear(2, 2), "norm": nn.BatchNorm1d(2), "last": nn.Linear(2, 2)})
        net["last"].requires_grad_(False)
        net["tied"] = net["first"]
        return net

    net = build()
    trains = [*net["first"].parameters(), *net["norm"].parameters()]
    parts = model_parts(PsArguments(net, torch.optim.SGD(trains, lr=0.1)))
    absent = [*(f"norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked"))]
    absent += ["last.weight", "last.bias", "tied.weight", "tied.bias"]
    assert sorted(parts.absent) == sorted(absent)
    trained = {tensor.name: torch.ones(tensor.shape) for tensor in parts.spec.tensors}
    monkeypatch.setattr(slot_export, "state_of", lambda folder, spec: trained)
    found = ps_pb2.GetSlotsResponse(model=to_proto(parts.spec, absent=parts.absent))
    found.settings.snapshot_url = str(tmp_path)
    with pytest.raises(PartialStateError, match="7 keys") as raised:
        export_state(found, "checkpoint-000001", tmp_path / "model.pt")
    assert raised.value.facts["absent"] == parts.absent and not (tmp_path / "model.pt").exists()
    facts = export_state(found, "checkpoint-000001", tmp_path / "model.pt", partial=True)
    assert facts["absent"] == parts.absent
    missing, unexpected = build().load_state_dict(torch.load(tmp_path / "model.pt"), strict=False)
    # torch fills a missing count of batches in.
    assert {*missing, "norm.num_batches_tracked"} == set(absent) and not unexpected
