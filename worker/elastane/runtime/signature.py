"""Properties that must be equal in all workers of a job; the master compares them when a worker joins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import torch

from elastane.data.source import BatchSource
from elastane.runtime.options import TrainOptions
from elastane.runtime.prepared_objects import PreparedObjects
from elastane_common import determinism
from elastane_proto.v1 import ring_pb2


def script_signature(
    prepared: PreparedObjects,
    options: TrainOptions,
    source: BatchSource,
    epochs: int,
    *,
    max_steps: int = 0,
    carried: Iterable[str] = (),
) -> ring_pb2.ScriptSignature:
    """Return names, shapes and dtypes of tensors, the data's size, and the settings that decide the bits.

    max_steps: of `job.epochs`; 0: none. carried: names of `job.carry`.
    """
    model = prepared.model
    signature = ring_pb2.ScriptSignature(
        dataset_size=source.dataset_size,
        batch_size=source.signature_batch_size,
        steps_per_epoch=source.steps_per_epoch,
        epochs=epochs,
    )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        signature.tensors.append(
            ring_pb2.TensorSpec(
                name=name, shape=list(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch.")
            )
        )
    signature.environment.update(
        {
            "optimizer": ",".join(type(optimizer).__name__ for optimizer in prepared.optimizers),
            "schedulers": ",".join(type(scheduler).__name__ for scheduler in prepared.schedulers),
            "prepared": ",".join(prepared.extras),
            "registered": ",".join(source.registry.names),
            **{name: str(value) for name, value in asdict(options).items()},
            "data_workers": str(source.num_workers),
            "dtype": str(torch.get_default_dtype()),
            **determinism.facts(determinism.in_effect(), next(iter(model.parameters())).device),
        }
    )
    if max_steps:
        signature.environment["max_steps"] = str(max_steps)
    if names := ",".join(sorted(carried)):
        signature.environment["carried"] = names
    return signature
