"""What the names in a file of tensors stand for: storages, and tensors as views of them.

torch writes a tensor as a call of `_rebuild_tensor_v2` with its storage, the offset of its first element, its sizes and
its strides, in elements; several tensors may share a storage. Here the call makes a `TensorView`, checked.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Final, NamedTuple, cast

from msgspec import Meta, ValidationError, convert

from ...errors import CheckpointError, UnsupportedModel
from ..safetensors import ITEM_BYTES, countable
from .machine import Global

MAX_DIMENSIONS: Final = 8
# Types by torch's names; those of storages without a type stand beside the tensor.
STORAGES: Final = {
    "torch.FloatStorage": "F32", "torch.HalfStorage": "F16", "torch.BFloat16Storage": "BF16",
    "torch.DoubleStorage": "F64", "torch.LongStorage": "I64", "torch.IntStorage": "I32", "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8", "torch.ByteStorage": "U8", "torch.BoolStorage": "BOOL",
}  # fmt: skip
DTYPES: Final = {
    "torch.float8_e4m3fn": "F8_E4M3", "torch.float8_e5m2": "F8_E5M2", "torch.uint16": "U16", "torch.uint32": "U32",
    "torch.uint64": "U64", "torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16",
    "torch.float64": "F64", "torch.int64": "I64", "torch.int32": "I32", "torch.int16": "I16", "torch.int8": "I8",
    "torch.uint8": "U8", "torch.bool": "BOOL",
}  # fmt: skip
UNTYPED: Final = "torch.storage.UntypedStorage"
DICT, TENSOR = "collections.OrderedDict", "torch._utils._rebuild_tensor_v2"
TYPED_TENSOR, PARAMETER = "torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_parameter"

Size = Annotated[int, Meta(ge=0, lt=2**53)]
Sizes = Annotated[tuple[Size, ...], Meta(max_length=MAX_DIMENSIONS)]


class Storage(NamedTuple):
    """A run of elements: one record of the archive. `type` is None where the tensor says it: then of bytes."""

    key: str
    type: str | None
    elements: int

    @property
    def bytes(self) -> int:
        return self.elements * (1 if self.type is None else ITEM_BYTES[self.type])


class TensorView(NamedTuple):
    """A tensor: elements of a storage. `offset` and `strides` count elements of `type`."""

    storage: Storage
    type: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Whether the elements follow each other in the storage, in order."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size > 1 and stride != step:
                return False
            step *= size
        return True


class TensorMeaning:
    """The names that files of tensors have, and what they make. Collects the storages."""

    names = frozenset({*STORAGES, *DTYPES, UNTYPED, DICT, TENSOR, TYPED_TENSOR, PARAMETER})

    def __init__(self, file: str) -> None:
        self.storages: dict[str, Storage] = {}
        self._place = f"{file}: pickle"

    def call(self, name: str, arguments: tuple[object, ...]) -> object:
        match name, arguments:
            case "collections.OrderedDict", ():
                return dict[str, object]()
            case "torch._utils._rebuild_parameter", (TensorView() as view, bool(), _):
                return view
            case "torch._utils._rebuild_tensor_v2", (Storage() as storage, offset, shape, strides, bool(), _, *more):
                self._refuse_metadata(more)
                return self._view(storage, storage.type, offset, shape, strides)
            case "torch._utils._rebuild_tensor_v3", (
                Storage() as storage, offset, shape, strides, bool(), _, Global() as dtype, *more,
            ):  # fmt: skip
                self._refuse_metadata(more)
                return self._view(storage, DTYPES.get(dtype.name), offset, shape, strides)
            case _:
                raise CheckpointError(self._place, name, "is called with other arguments than torch.save writes")

    def persistent(self, value: object) -> object:
        """A storage: ("storage", its type, its record, the device that it was on, its elements)."""
        match value:
            case (
                ("storage", Global(name), str(key), str(), int(count))
                | ("storage", Global(name), str(key), str(), int(count), None)  # of a part of a storage, once
            ):
                kind = STORAGES.get(name)
                if name != UNTYPED and kind is None:
                    raise UnsupportedModel(self._place, name, "no type of a storage that is read")
                if not 0 <= count < 2**53 or type(count) is not int:
                    raise CheckpointError(self._place, count, "elements of a storage")
                storage = Storage(key, kind, count)
                known = self.storages.setdefault(key, storage)
                if known.bytes != storage.bytes:
                    raise CheckpointError(self._place, key, f"is said to have {known.bytes} and {storage.bytes} bytes")
                return storage
            case _:
                raise CheckpointError(self._place, type(value).__name__, "no storage as torch.save describes it")

    def _refuse_metadata(self, more: list[object]) -> None:
        """A conjugate or negative view, or some attribute."""
        if more not in ([], [None]) and not (len(more) == 1 and isinstance(more[0], dict) and not more[0]):
            raise UnsupportedModel(self._place, "metadata", "of a tensor: only plain tensors are read")

    def _view(self, storage: Storage, kind: str | None, offset: object, shape: object, strides: object) -> TensorView:
        if kind is None:
            raise CheckpointError(self._place, storage.key, "a tensor without a type")
        try:
            view = TensorView(storage, kind, convert(offset, Size), convert(shape, Sizes), convert(strides, Sizes))
        except ValidationError as error:
            raise CheckpointError(self._place, storage.key, f"a tensor's offset, sizes or strides: {error}") from None
        elements = storage.bytes // ITEM_BYTES[kind]
        if len(view.shape) != len(view.strides):
            raise CheckpointError(self._place, view.strides, f"strides of a tensor of the shape {view.shape}")
        if prod(view.shape) > elements or not countable(view.shape):
            raise CheckpointError(self._place, view.shape, f"a view of {elements} elements has each of them once")
        steps = zip(view.shape, view.strides, strict=True)
        last = view.offset + sum((size - 1) * stride for size, stride in steps)
        if 0 not in view.shape and last >= elements:
            raise CheckpointError(self._place, view.shape, f"element {last} of a storage with {elements}")
        return view


def named_views(value: object, file: str) -> dict[str, TensorView]:
    """The tensors of what a pickle made: a dict of them."""
    if not isinstance(value, dict):
        raise UnsupportedModel(f"{file}: pickle", type(value).__name__, "expected a dict of tensors by name")
    views: dict[str, TensorView] = {}
    for name, found in cast("dict[str, object]", value).items():
        if not isinstance(found, TensorView):
            remedy = "expected a tensor; of a training checkpoint, save the model's state_dict() alone"
            raise UnsupportedModel(f"{file}: {name}", type(found).__name__, remedy)
        views[name] = found
    return views
