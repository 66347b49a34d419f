"""Nested Python state as JSON and a list of tensors, and back, without pickle.

State that crosses a process or file boundary must be restored with the same bits and must not be able to
run code. So it is written as a tree of a closed set of types; any other type is refused with the path to
it, on the side that still has the object, before anything is sent.

The structure is one JSON object `{"version", "tensors": [spec...], "paths": [...], "tree": node}`. A node is
    null, true, "text", 17, 0.25    themselves (Python's JSON restores finite floats exactly)
    [node...]                       a list
    {"KIND": ...}                   everything else, see `_Encoder`
A tensor in the tree is an index into the list of tensors; one that occurs twice (tied weights) is
listed once. A spec keeps dtype, shape, stride (channels_last!) and the kind of device.

The list is ordered by the tensors' paths, whatever the order of the dicts that contain them: workers whose
dicts were filled in another order (an optimizer's state, by which parameter was used first) must agree on
it, since each sends or writes only a part of the list.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import torch

from elastane_common.errors import EXIT_REFUSED, ElastaneError

VERSION: Final = 1
_PLAIN_INT_MAX: Final = 2**63
_ARRAY_KINDS: Final = "biufc"
_DICTS: Final[dict[str, type]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_SEQUENCES: Final[dict[str, type]] = {"tuple": tuple, "size": torch.Size}
_DTYPES: Final[dict[str, torch.dtype]] = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


class StateNotCarriedError(ElastaneError):
    """A part of the state is of a type that cannot be carried exactly; `facts["path"]` says where."""

    code = "ELA306"
    exit_code = EXIT_REFUSED


class StateFormatError(ElastaneError):
    """A structure that this version cannot read: damaged, or written by another version."""

    code = "ELA307"


@dataclass(frozen=True)
class TensorSpec:
    """Metadata of a tensor. `device` is a kind ("cpu", "cuda"), never an index."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass
class Exported:
    """Exported state: `structure` (JSON, see the module) and the tensors it refers to by index.

    The tensors are references to the live ones, or views into one buffer after a hand-over or a load. Each is
    dense: its elements fill `numel` places of memory in some order of dimensions. `specs` are those of the
    structure: `tensors[i]` has dtype, shape and stride of `specs[i]`, but may be on another device (staging
    memory). `paths` give the place of each tensor in the state; empty in structures of older versions.
    """

    structure: bytes
    tensors: list[torch.Tensor]
    specs: list[TensorSpec] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.specs and self.tensors:
            self.specs = specs_of(self.structure)
        if not self.paths and self.tensors:
            self.paths = document_of(self.structure).get("paths", [])


def encode(state: object, *, path: str = "") -> Exported:
    """Encode the state as structure and tensors; tensors are referenced, not copied.

    Only a tensor that is not dense (expanded, strided by slicing) or is a lazy conjugate is copied, to a
    contiguous one. path: name of the root in messages. Raises StateNotCarriedError.
    """
    encoder = _Encoder()
    tree = encoder.node(state, path)
    encoder.put_in_order()
    specs = [spec_of(tensor) for tensor in encoder.tensors]
    document = {
        "version": VERSION,
        "tensors": [_spec_to_json(spec) for spec in specs],
        "paths": encoder.paths,
        "tree": tree,
    }
    structure = json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii")
    return Exported(structure, encoder.tensors, specs, encoder.paths)


def decode(exported: Exported) -> Any:
    """Decode the state; its tensors are those of `exported` themselves.

    Raises StateFormatError.
    """
    document = document_of(exported.structure)
    if len(exported.tensors) != len(document["tensors"]):
        raise StateFormatError(
            f"the structure names {len(document['tensors'])} tensors, {len(exported.tensors)} were given"
        )
    try:
        return decode_node(document["tree"], exported.tensors)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise StateFormatError(f"the structure of the state is damaged: {error}") from error


def specs_of(structure: bytes) -> list[TensorSpec]:
    """Return the specs of a structure's tensors, in order, sufficient to allocate memory for them."""
    try:
        return [
            _checked(TensorSpec(_DTYPES[dtype], tuple(shape), tuple(stride), device))
            for dtype, shape, stride, device in document_of(structure)["tensors"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise StateFormatError(f"the structure of the state is damaged: {error}") from error


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.device.type)


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """True if the elements fill `numel` places of memory, each once (in any order of dimensions)."""
    if 0 in shape:
        return True
    expected = 1
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True) if size != 1):
        if step != expected:
            return False
        expected *= size
    return True


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a dense tensor as a 1-D uint8 view of `nbytes`, without a copy."""
    if tensor.numel() == 0:
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def from_flat_bytes(flat: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Return the tensor of `spec` as a view of `flat` (1-D uint8, `nbytes` long, aligned to the item
    size)."""
    if spec.nbytes == 0:
        return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=flat.device)
    typed = flat.view(spec.dtype)
    return typed.as_strided(spec.shape, spec.stride, typed.storage_offset())


class _Encoder:
    """Walks the state once and collects its tensors. One method per family of types."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        #: For each tensor, the smallest of the paths that lead to it.
        self.paths: list[str] = []
        #: Places in the tree that hold a tensor's index.
        self._references: list[tuple[Any, Any]] = []
        self._index: dict[object, int] = {}
        self._alive: list[torch.Tensor] = []  # keys are addresses, so their tensors must not be freed
        self._open: set[int] = set()

    def put_in_order(self) -> None:
        """Number the tensors by their paths; called once, when the tree is complete."""
        order = sorted(range(len(self.tensors)), key=self.paths.__getitem__)
        number = {old: new for new, old in enumerate(order)}
        for holder, key in self._references:
            holder[key] = number[holder[key]]
        self.tensors = [self.tensors[old] for old in order]
        self.paths = [self.paths[old] for old in order]

    def node(self, value: object, path: str) -> object:
        if value is None or type(value) is bool:
            return value
        if type(value) is str:
            return value
        if type(value) is int:
            return value if -_PLAIN_INT_MAX <= value < _PLAIN_INT_MAX else {"int": hex(value)}
        if type(value) is float:
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if type(value) is bytes:
            return {"bytes": base64.b64encode(value).decode("ascii")}
        if isinstance(value, torch.Tensor):
            return self._reference({"tensor": self._tensor(value, path)}, "tensor")
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, np.generic | np.ndarray):
            return self._numpy(value, path)
        return self._container(value, path)

    def _container(self, value: object, path: str) -> object:
        # Only containers on the current path: the same list may occur twice without being a cycle.
        if id(value) in self._open:
            raise StateNotCarriedError(f"{path or 'the state'}: contains itself", path=path)
        self._open.add(id(value))
        try:
            if type(value) is list:
                return [self.node(item, f"{path}[{i}]") for i, item in enumerate(value)]
            for kind, sequence in _SEQUENCES.items():
                if type(value) is sequence:
                    sequence_items: Iterable[object] = value  # type: ignore[assignment]
                    return {kind: [self.node(item, f"{path}[{i}]") for i, item in enumerate(sequence_items)]}
            for kind, mapping in _DICTS.items():
                if type(value) is mapping:
                    return {kind: self._items(value, path)}  # type: ignore[arg-type]
        finally:
            self._open.discard(id(value))
        raise _not_carried(value, path)

    def _items(self, mapping: dict[object, object], path: str) -> list[list[object]]:
        items: list[list[object]] = []
        for key, value in mapping.items():
            if type(key) is not str and type(key) is not int:
                raise StateNotCarriedError(
                    f"{path or 'the state'}: key {key!r} of type {_type_name(key)} cannot be carried",
                    hint="keys must be str or int",
                    path=path,
                )
            inner = f"{path}[{key}]" if type(key) is int else f"{path}.{key}".removeprefix(".")
            items.append([self.node(key, path), self.node(value, inner)])
        return items

    def _tensor(self, tensor: torch.Tensor, path: str) -> int:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise _not_carried(tensor, path)
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            kind = "quantized" if tensor.is_quantized else f"{tensor.layout}, {tensor.device}"
            raise StateNotCarriedError(
                f"{path or 'the state'}: a tensor of kind ({kind}) cannot be carried", path=path
            )
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        place: object = tensor.data_ptr() if tensor.numel() else id(tensor)
        # Equal memory and view mean tied tensors; empty ones share a null pointer, so identity counts.
        key = (place, tensor.device, tensor.dtype, shape, stride, tensor.is_conj(), tensor.is_neg())
        if key not in self._index:
            self._index[key] = len(self.tensors)
            self._alive.append(tensor)
            plain = tensor.detach().resolve_conj().resolve_neg()
            dense = is_dense(tuple(plain.shape), tuple(plain.stride()))
            self.tensors.append(plain if dense else plain.contiguous())
            self.paths.append(path)
        index = self._index[key]
        self.paths[index] = min(self.paths[index], path)
        return index

    def _reference(self, holder: Any, key: Any) -> Any:
        self._references.append((holder, key))
        return holder

    def _numpy(self, value: np.generic | np.ndarray[Any, Any], path: str) -> object:
        if value.dtype.kind not in _ARRAY_KINDS or (
            isinstance(value, np.ndarray) and type(value) is not np.ndarray
        ):
            raise _not_carried(value, path)
        if isinstance(value, np.generic):
            return {"scalar": [value.dtype.str, base64.b64encode(value.tobytes()).decode("ascii")]}
        order: Literal["C", "F"] = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        # A copy: NumPy and torch disagree on read-only memory, and arrays in training state are small.
        memory = torch.frombuffer(bytearray(value.tobytes(order=order)) or bytearray(1), dtype=torch.uint8)
        index = self._tensor(memory[: value.nbytes], path)
        return {"array": self._reference([value.dtype.str, list(value.shape), order, index], 3)}


def decode_node(node: Any, tensors: Sequence[torch.Tensor] | Mapping[int, torch.Tensor]) -> Any:
    """Decode a part of a structure's tree. tensors: by index, at least those of this part."""
    if isinstance(node, list):
        return [decode_node(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind in _DICTS:
        # Filled after construction: Counter(pairs) would count the pairs.
        mapping = _DICTS[kind]()
        for key, value in content:
            mapping[decode_node(key, tensors)] = decode_node(value, tensors)
        return mapping
    if kind in _SEQUENCES:
        return _SEQUENCES[kind]([decode_node(item, tensors) for item in content])
    return _decode_leaf(kind, content, tensors)


def _decode_leaf(
    kind: str, content: Any, tensors: Sequence[torch.Tensor] | Mapping[int, torch.Tensor]
) -> Any:
    if kind == "tensor":
        return tensors[content]
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return struct.unpack(">d", bytes.fromhex(content))[0]
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "dtype":
        return _DTYPES[content]
    if kind == "scalar":
        dtype, data = content
        return np.frombuffer(base64.b64decode(data, validate=True), dtype=np.dtype(dtype))[0]
    if kind == "array":
        dtype, shape, order, index = content
        data = flat_bytes(tensors[index]).cpu().numpy().tobytes()
        return np.frombuffer(bytearray(data), dtype=np.dtype(dtype)).reshape(shape, order=order)
    raise ValueError(f"unknown kind {kind!r}")


def document_of(structure: bytes) -> dict[str, Any]:
    """Return a structure's JSON object (see the module). Raises StateFormatError."""
    try:
        document = json.loads(structure)
    except ValueError as error:
        raise StateFormatError(f"the structure of the state is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        version = document.get("version") if isinstance(document, dict) else None
        raise StateFormatError(
            f"the structure of the state has version {version}, this code reads {VERSION}",
            hint="use the version of elastane that wrote it",
        )
    if not isinstance(document.get("tensors"), list) or "tree" not in document:
        raise StateFormatError("the structure of the state has no tensors or no tree")
    paths = document.get("paths", [])
    if not isinstance(paths, list) or (paths and len(paths) != len(document["tensors"])):
        raise StateFormatError("the structure of the state has a different number of paths and tensors")
    return document


def _spec_to_json(spec: TensorSpec) -> list[object]:
    return [str(spec.dtype).removeprefix("torch."), list(spec.shape), list(spec.stride), spec.device]


def _checked(spec: TensorSpec) -> TensorSpec:
    numbers = (*spec.shape, *spec.stride)
    if any(type(number) is not int or number < 0 for number in numbers) or type(spec.device) is not str:
        raise ValueError(f"impossible tensor {spec}")
    if len(spec.shape) != len(spec.stride) or not is_dense(spec.shape, spec.stride):
        raise ValueError(f"impossible strides {spec.stride} of shape {spec.shape}")
    return spec


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _not_carried(value: object, path: str) -> StateNotCarriedError:
    name = _type_name(value)
    return StateNotCarriedError(
        f"{path or 'the state'}: object of type {name} cannot be carried",
        hint="use numbers, text, bytes, tensors, NumPy arrays, and lists, tuples and dicts of them",
        path=path,
        type=name,
    )
