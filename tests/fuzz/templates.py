"""A right request of each rpc, for the fuzz to spoil. Operators' requests are about a job of their own."""

from __future__ import annotations

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from elastane_proto.v1 import job_pb2, ps_pb2, ring_pb2, shard_pb2

VICTIM = "victim"


def job_settings(ests: int = 2) -> job_pb2.JobSettings:
    settings = job_pb2.JobSettings(ests=ests, workers_min=1, workers_max=ests, lease_factor=20.0)
    settings.heartbeat_timeout.FromSeconds(60)
    settings.lease_min.FromSeconds(30)
    settings.join_window.FromMilliseconds(1)
    settings.ps_slots, settings.checkpoint_url = 4, "memory://fuzz"
    settings.ps_return.FromMilliseconds(1)
    return settings


def dataset_settings() -> shard_pb2.DatasetSettings:
    settings = shard_pb2.DatasetSettings(task_size=2, epochs=2, max_attempts=3)
    settings.stream.watermark = 9
    settings.lease.FromSeconds(60)
    return settings


def lease_tasks() -> shard_pb2.LeaseTasksRequest:
    request = shard_pb2.LeaseTasksRequest(
        job="job", dataset="tasks", worker_id="w0", max_tasks=1, request_id="r"
    )
    request.wait.FromMilliseconds(1)
    request.rng.python = b"state"
    return request


def request_of(method: MethodDescriptor) -> Message:
    """A right request."""
    message = GetMessageClass(method.input_type)()
    fields = message.DESCRIPTOR.fields_by_name
    if "name" in fields:
        message.name = VICTIM
    if "job" in fields:
        message.job = "job"
    match method.name:
        case "Create":
            message.settings.CopyFrom(job_settings())
        case "Scale":
            message.workers_min, message.workers_max = 1, 2
        case "SetPrices":
            message.spot_price_micros, message.on_demand_price_micros, message.currency = 1, 2, "USD"
        case "DrainWorker":
            message.worker_id = "w0"
        case "CreateDataset":
            message.dataset = "tasks"
            message.settings.CopyFrom(dataset_settings())
        case "ExtendDataset":
            message.dataset, message.watermark = "tasks", 9
        case "LeaseTasks":
            message.CopyFrom(lease_tasks())
        case "RegisterModel":
            message.worker_id = "w0"
            message.model.CopyFrom(slot_model())
        case "DrainPs":
            message.ps_id = "ps-0"
        case "RewindSlots":
            message.checkpoint = "checkpoint-000001"
    return message


def slot_model() -> ps_pb2.SlotModel:
    tensor = ps_pb2.DenseTensor(name="fc", shape=[4], dtype="float32", rule=ps_pb2.DENSE_RULE_SGD)
    table = ps_pb2.RowTable(
        name="ids",
        rows=9,
        width=2,
        dtype="float32",
        distribution=ps_pb2.ROW_DISTRIBUTION_ZEROS,
        rule=ps_pb2.ROW_RULE_SGD,
    )
    return ps_pb2.SlotModel(slots=4, tensors=[tensor], tables=[table])


def ps_hello(ps_id: str) -> ps_pb2.PsHello:
    return ps_pb2.PsHello(job="job", ps_id=ps_id, address="a:1", process=ps_id.encode())


def ps_requests(slot: int, life: int, generation: int) -> list[ps_pb2.AttendSlotsRequest]:
    """What a parameter server may say, right for somebody at some time."""
    names = ps_pb2.TaskRunName(dataset="tasks", start=0, end=2)
    saved = ps_pb2.SavedSlot(slot=slot, life=life, version=1)
    closed = ps_pb2.ClosedSlot(slot=slot, life=life, applied=[True, False])
    request = ps_pb2.AttendSlotsRequest
    return [
        request(heartbeat=ps_pb2.PsHeartbeat(generation=generation)),
        request(restored=ps_pb2.SlotRestored(slot=slot, life=life, since=generation)),
        request(restored=ps_pb2.SlotRestored(slot=slot, life=life, since=generation, snapshot="s")),
        request(copied=ps_pb2.SlotCopied(slot=slot, ps_id="ps-1", begun=generation)),
        request(copy_broken=ps_pb2.CopyBroken(slot=slot, ps_id="ps-1", begun=generation, error="e")),
        request(backup_lost=ps_pb2.BackupLost(slot=slot, ps_id="ps-1", generation=generation)),
        request(saved=ps_pb2.SlotsSaved(request="save-1", slots=[saved])),
        request(closed=ps_pb2.TasksClosed(tasks=[names], slots=[closed])),
        request(leaving=ps_pb2.PsLeaving(reason="spot")),
        request(bye=ps_pb2.PsBye(reason="drained")),
    ]


def hello(worker: str) -> ring_pb2.Hello:
    signature = ring_pb2.ScriptSignature(dataset_size=8, batch_size=2, steps_per_epoch=2, epochs=2)
    return ring_pb2.Hello(
        job="job", worker_id=worker, role=ring_pb2.WORKER_ROLE_RING, signature=signature, store_address="a:1"
    )


def attend_requests(generation: int, step: int) -> list[ring_pb2.AttendRequest]:
    """What a worker of a ring may say, right for somebody at some time."""
    report = ring_pb2.StepReport(generation=generation, step=step)
    loaded = ring_pb2.Loaded(generation=generation, step=step)
    for rank in range(2):
        context = report.contexts.add(virtual_rank=rank, step=step + 1, delta=True)
        context.rng.python = b"after"
        if step % 2:
            context.positions.add(name="rng/torch_cpu", beside_words=b"beside", checksum=1)
        report.tasks.add(virtual_rank=rank, samples=[rank]).range.end = 1
        loaded.contexts.add(virtual_rank=rank, step=step).rng.python = b"before"
    saved = ring_pb2.Saved(checkpoint="step-0", step=step)
    return [
        ring_pb2.AttendRequest(ready=ring_pb2.Ready(generation=generation, applied_step=step)),
        ring_pb2.AttendRequest(loaded=loaded),
        ring_pb2.AttendRequest(step_report=report),
        ring_pb2.AttendRequest(
            heartbeat=ring_pb2.Heartbeat(
                generation=generation, applied_step=step, phase=ring_pb2.TRAINER_PHASE_STEP
            )
        ),
        ring_pb2.AttendRequest(
            check_report=ring_pb2.CheckReport(generation=generation, step=step, digest=b"digest")
        ),
        ring_pb2.AttendRequest(ring_broken=ring_pb2.RingBroken(generation=generation, step=step, error="e")),
        ring_pb2.AttendRequest(saved=saved),
        ring_pb2.AttendRequest(leaving=ring_pb2.Leaving(reason="spot")),
        ring_pb2.AttendRequest(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FAILED, message="ValueError")),
    ]
