"""Generates the reference of the protocol from the .proto files, with their comments."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from docs_site.paths import ROOT
from docs_site.tables import cell

_FOLDER = ROOT / "proto"
_F = descriptor_pb2.FieldDescriptorProto
_SCALARS = {number: name.removeprefix("TYPE_").lower() for name, number in _F.Type.items()}
#: Field numbers of FileDescriptorProto in descriptor.proto, from which the paths of comments are made.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _VALUES, _METHODS = 2, 3, 2, 2

Comments = Mapping[tuple[int, ...], str]

_HEAD = """\
# Protocol

gRPC, package `elastane.v1` where no other is named. A master describes itself by reflection
(`grpcurl -plaintext HOST:PORT list`) unless told not to. Refused calls bear an
[ErrorDetail](../errors.md). Durations and times are protobuf's own.
"""


def files() -> list[descriptor_pb2.FileDescriptorProto]:
    """Parse every file of the API with protoc, comments included."""
    names = sorted(path.relative_to(_FOLDER).as_posix() for path in _FOLDER.glob("elastane_proto/*/*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        arguments = ["protoc", f"-I{_FOLDER}", f"-I{Path(protoc.__file__).parent / '_proto'}"]
        arguments += [f"--descriptor_set_out={out}", "--include_source_info", *names]
        if protoc.main(arguments) != 0:
            raise RuntimeError("protoc could not read the .proto files")
        return list(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)


def render() -> str:
    """Return the page in Markdown."""
    return "\n".join([_HEAD, *(part for file in files() for part in _file(file))])


def _file(file: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    comments = {
        tuple(place.path): " ".join(place.leading_comments.split())
        for place in file.source_code_info.location
        if place.leading_comments
    }
    for number, service in enumerate(file.service):
        package = "" if file.package == "elastane.v1" else f"{file.package}."
        yield f"## {package}{service.name}\n\n{comments.get((_SERVICES, number), '')}\n"
        yield "| rpc | | |\n|---|---|---|"
        for at, method in enumerate(service.method):
            text = comments.get((_SERVICES, number, _METHODS, at), "")
            asks = f"{'stream ' if method.client_streaming else ''}{_short(method.input_type)}"
            gives = f"{'stream ' if method.server_streaming else ''}{_short(method.output_type)}"
            yield f"| `{method.name}` | {cell(text)} | `{asks}` to `{gives}` |"
        yield ""
    title = Path(file.name).stem
    yield f"## Messages of {title}.proto\n"
    for number, message in enumerate(file.message_type):
        yield from _message(message, message.name, (_MESSAGES, number), comments)
    for number, enum in enumerate(file.enum_type):
        yield from _enum(enum, enum.name, (_ENUMS, number), comments)


def _message(
    message: descriptor_pb2.DescriptorProto, name: str, path: tuple[int, ...], comments: Comments
) -> Iterator[str]:
    entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    yield f"### {name}\n\n{comments.get(path, '')}\n"
    if message.field:
        yield "| field | type | number | |\n|---|---|---|---|"
    for at, field in enumerate(message.field):
        text = comments.get((*path, _FIELDS, at), "")
        yield f"| `{field.name}` | `{_type(field, entries)}` | {field.number} | {cell(text)} |"
    yield ""
    for at, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message(nested, f"{name}.{nested.name}", (*path, _NESTED, at), comments)


def _enum(
    enum: descriptor_pb2.EnumDescriptorProto, name: str, path: tuple[int, ...], comments: Comments
) -> Iterator[str]:
    yield f"### {name}\n\n{comments.get(path, '')}\n\n| value | number | |\n|---|---|---|"
    for at, value in enumerate(enum.value):
        yield f"| `{value.name}` | {value.number} | {cell(comments.get((*path, _VALUES, at), ''))} |"
    yield ""


def _type(
    field: descriptor_pb2.FieldDescriptorProto, entries: Mapping[str, descriptor_pb2.DescriptorProto]
) -> str:
    name = _short(field.type_name) if field.type_name else _SCALARS[field.type]
    entry = entries.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        return f"map of {_type(entry.field[0], {})} to {_type(entry.field[1], {})}"
    repeated = field.label == _F.LABEL_REPEATED
    return f"{'repeated ' if repeated else 'optional ' if field.proto3_optional else ''}{name}"


def _short(name: str) -> str:
    return name.removeprefix(".elastane.v1.").removeprefix(".google.protobuf.").removeprefix(".training.")
