"""Server reflection under both names that clients use.

grpcio provides only `grpc.reflection.v1alpha`. `grpc.reflection.v1` has the same messages in another package,
so the same servicer answers it; its descriptor is derived from the other, so that it can be described, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2

ALPHA: Final = "grpc.reflection.v1alpha"
STABLE: Final = "grpc.reflection.v1"


def describe(services: Iterable[str], server: grpc.aio.Server) -> None:
    """Add reflection to a server that serves `services`."""
    _know_stable()
    named = [*services, f"{ALPHA}.ServerReflection", f"{STABLE}.ServerReflection"]
    reflection.enable_server_reflection(named, server)
    servicer = reflection.aio.ReflectionServicer(named)  # type: ignore[attr-defined]
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    stable = f"{STABLE}.ServerReflection"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(stable, {"ServerReflectionInfo": handler}),)
    )


def _know_stable() -> None:
    """Add the descriptor of the stable name to the pool; repeating this changes nothing."""
    renamed = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(renamed)
    renamed.name = renamed.name.replace("v1alpha", "v1")
    renamed.package = STABLE
    renamed.ClearField("options")
    for message in renamed.message_type:
        for field in (one for one in message.field if one.HasField("type_name")):
            field.type_name = field.type_name.replace(f".{ALPHA}.", f".{STABLE}.")
    for service in renamed.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{ALPHA}.", f".{STABLE}.")
            method.output_type = method.output_type.replace(f".{ALPHA}.", f".{STABLE}.")
    descriptor_pool.Default().Add(renamed)
