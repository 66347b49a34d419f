"""Connects a worker to the parameter servers of its job."""

from __future__ import annotations

from collections.abc import Callable

import torch

from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.slots.dense import DenseMemory
from elastane.runtime.slots.errors import PsModeError
from elastane.runtime.slots.model import ModelParts, PsArguments, model_parts
from elastane.runtime.slots.prepared import NonFinite, PreparedPs
from elastane.slots.map_message import wire_of
from elastane.slots.map_watch import MapWatch
from elastane.slots.slot_client import SlotClient
from elastane.tables.spec_proto import to_proto
from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError
from elastane_common.credentials import master_has_tls
from elastane_common.process_tls import offer_of
from elastane_proto.v1 import job_pb2, ps_pb2, ps_pb2_grpc

NONFINITE: dict[int, NonFinite] = {job_pb2.PS_NONFINITE_SKIP: "skip", job_pb2.PS_NONFINITE_FAIL: "fail"}


def prepare_remote(
    environment: WorkerEnvironment, given: PsArguments, seed: int, require_open: Callable[[], None]
) -> PreparedPs:
    """Register a model with the master, and return it with its weights at parameter servers.

    require_open: raises once the job is over. Raises PsModelError, PsOptimizerError; PsModeError if the job
    has another model; MasterUnreachableError.
    """
    client = MasterClient(environment.master, timeout_seconds=environment.master_timeout_seconds)
    try:
        slots = client.get_job(environment.job).settings.ps_slots
        parts = model_parts(given, slots=slots, seed=seed)
        memory = DenseMemory(parts.spec, parts.dense)
        answer = _register(client, environment, parts, memory)
    except BaseException:
        client.close()
        raise
    spec = parts.spec
    if wire_of(answer.settings) != spec.wire:
        parts = model_parts(given, slots=slots, seed=seed, wire=wire_of(answer.settings))
        memory = DenseMemory(parts.spec, parts.dense)
    access = SlotClient(
        parts.spec,
        MapWatch(client, environment.job, environment.worker_id, answer.map),
        digest=memory.digest,
        initial=memory.initial,
        timeout_seconds=environment.master_timeout_seconds,
        require_open=require_open,
        journal=answer.settings.journal,
        encrypted=offer_of(environment.ring_tls, master_has_tls()) == "wanted",
    )
    nonfinite = NONFINITE.get(answer.settings.nonfinite, "refuse")
    return PreparedPs(given, parts, memory, access, nonfinite, journal=answer.settings.journal)


def _register(
    client: MasterClient, environment: WorkerEnvironment, parts: ModelParts, memory: DenseMemory
) -> ps_pb2.RegisterModelResponse:
    model = to_proto(
        parts.spec,
        dense_digest=memory.digest,
        environment={
            "torch": torch.__version__,
            "local": parts.local,
            "threads": str(environment.torch_threads),
            "determinism": environment.determinism.value,
        },
        absent=parts.absent,
    )
    request = ps_pb2.RegisterModelRequest(job=environment.job, worker_id=environment.worker_id, model=model)
    try:
        answer: ps_pb2.RegisterModelResponse = client.call(
            ps_pb2_grpc.SlotServiceStub, "RegisterModel", request
        )
        return answer
    except RequestRefusedError as error:
        raise PsModeError(
            f"the master refuses the model: {error.args[0]}",
            hint=error.hint or "every worker must build the same model: elastane.init(seed=...)",
            **error.facts,
        ) from error
