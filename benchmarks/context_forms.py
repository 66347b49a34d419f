"""Compare the two forms that an EST's context could have on the wire (docs/decisions/0043).

    context_forms.py

Prints for each kind of context the bytes of the message, and the microseconds to build, serialize, parse and
read it: the typed EstContext first, a map of strings to bytes second, then the ratio of the times (median and
range of rounds in which both were measured one after the other).
"""

import os
import statistics
import timeit

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from elastane_proto.contexts import context_from_proto, context_to_proto, pack_loader
from elastane_proto.v1.common_pb2 import EstContext

ROUNDS, CALLS = 41, 500
PYTHON, NUMPY, TORCH = 2517, 2512, 5056
"""Bytes of the states of the generators."""


def flat_message():
    """Return a message class with the fields of EstContext, but all parts in one map."""
    file = descriptor_pb2.FileDescriptorProto(name="flat.proto", package="flat", syntax="proto3")
    message = file.message_type.add(name="Flat")
    of = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="virtual_rank", number=1, type=of.TYPE_UINT32, label=of.LABEL_OPTIONAL)
    message.field.add(name="step", number=2, type=of.TYPE_INT64, label=of.LABEL_OPTIONAL)
    message.field.add(
        name="parts",
        number=3,
        type=of.TYPE_MESSAGE,
        label=of.LABEL_REPEATED,
        type_name=".flat.Flat.PartsEntry",
    )
    message.field.add(name="delta", number=4, type=of.TYPE_BOOL, label=of.LABEL_OPTIONAL)
    entry = message.nested_type.add(name="PartsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=of.TYPE_STRING, label=of.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=of.TYPE_BYTES, label=of.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("flat.Flat"))


FLAT = flat_message()


def typed_bytes(parts, delta):
    return context_to_proto(3, 1000, parts, delta=delta).SerializeToString()


def flat_bytes(parts, delta):
    message = FLAT(virtual_rank=3, step=1000, delta=delta)
    for name, part in parts.items():
        message.parts[name] = part
    return message.SerializeToString()


def typed_parts(data):
    return context_from_proto(EstContext.FromString(data))


def flat_parts(data):
    parts = FLAT.FromString(data).parts
    return {name: parts[name] for name in parts}


def contexts():
    """Return the kinds of contexts: name, parts, and whether it is a delta."""

    def states(prefix):
        sizes = {"python": PYTHON, "numpy": NUMPY, "torch_cpu": TORCH}
        return {f"{prefix}rng/{name}": os.urandom(size) for name, size in sizes.items()}

    loader = {"loader": pack_loader(1, 6, 77)}
    drawn = {"rng/torch_cpu": os.urandom(TORCH)} | loader
    streams = states("stream/0/") | states("stream/1/")
    return (
        ("delta of a step, no data workers", drawn, True),
        ("delta of a step, two data workers", drawn | {"stream/0/rng/torch_cpu": os.urandom(TORCH)}, True),
        ("whole context, two data workers", states("") | loader | streams, False),
        ("loader position only", loader, True),
    )


def round_trips(parts, delta):
    """Return the microseconds of one round trip in each form, of one round."""

    def microseconds(write, read):
        return timeit.timeit(lambda: read(write(parts, delta)), number=CALLS) / CALLS * 1e6

    return microseconds(typed_bytes, typed_parts), microseconds(flat_bytes, flat_parts)


def main():
    for name, parts, delta in contexts():
        typed, flat = typed_bytes(parts, delta), flat_bytes(parts, delta)
        assert typed_parts(typed) == flat_parts(flat) == parts
        times = [round_trips(parts, delta) for _ in range(ROUNDS)]
        ratios = sorted(flat_time / typed_time for typed_time, flat_time in times)
        typed_time, flat_time = (statistics.median(form) for form in zip(*times, strict=True))
        print(
            f"{name}: {len(typed)} and {len(flat)} bytes, {typed_time:.1f} and {flat_time:.1f} us, "
            f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
