"""LoRA adapters on a GPU: a fixed number of places, made with the model, and what the adapters in them add to a pass.

A place holds all matrices of one adapter as one piece of memory, so one copy fills it, in the order of the steps: those
launched before have read what was there. Ranks are filled up with zeros, and a matrix that an adapter leaves alone is
all zeros. A row without an adapter costs no arithmetic (`kernels/low_rank/gpu.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...kernels.low_rank.gpu import ROWS, low_rank, low_rank_floats
from ...protocol.settings import AdapterPlaces
from ..checkpoint.adapter import AdapterWeights, module_sizes
from ..checkpoint.spec import ModelSpec
from ..errors import UnsupportedModel
from .arena import Layout
from .device import Device
from .fill import in_rotary_order
from .linear import Activations
from .staging import host_tensor
from .weights import matrices

NO_ADAPTER = -1
# The modules of a checkpoint that are one matrix here.
MERGED = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}


@dataclass(frozen=True, slots=True)
class Adapted:
    """One matrix of a layer in every place."""

    a: torch.Tensor  # [places, modules * rank, in]
    b: torch.Tensor  # [places, out, rank]; includes the scale
    parts: tuple[int, ...]  # outputs of each module

    def add(self, x: Activations, numbers: torch.Tensor, out: torch.Tensor, workspace: torch.Tensor) -> None:
        """out [T, out] += B A x of each row's adapter; `numbers` [T]: its place, or NO_ADAPTER."""
        low_rank(x.values, numbers, self.a, self.b, out, workspace, parts=self.parts, x_scales=x.scales)


def padded_rank(places: AdapterPlaces) -> int:
    """A power of two, at least a tile: what the kernels take."""
    return max(ROWS, 1 << (places.rank - 1).bit_length())


def place_layout(spec: ModelSpec, places: AdapterPlaces, dtype: torch.dtype) -> Layout:
    """Of one place."""
    layout, rank = Layout(), padded_rank(places)
    for index in range(spec.num_layers):
        for name, (parts, columns) in _matrices(spec, index).items():
            layout.add(f"{index}.{name}.a", dtype, len(parts) * rank, columns)
            layout.add(f"{index}.{name}.b", dtype, sum(parts), rank)
    return layout


def adapters_layout(spec: ModelSpec, places: AdapterPlaces, tokens: int) -> Layout:
    """What a pass works with; nothing if there are no places."""
    layout = Layout()
    if places.count:
        every = (matrix for index in range(spec.num_layers) for matrix in _matrices(spec, index).values())
        sizes = {(columns, len(parts)) for parts, columns in every}
        floats = max(low_rank_floats(tokens, *size, padded_rank(places)) for size in sizes)
        layout.add("shrunk", torch.float32, floats)
    return layout


class DeviceAdapters:
    """The places. `pack` is for any one thread, `fill` for the one that launches steps."""

    def __init__(self, device: Device, spec: ModelSpec, places: AdapterPlaces, dtype: torch.dtype) -> None:
        self._device, self._spec, self._most = device, spec, places.rank
        self._layout, self._rank = place_layout(spec, places, dtype), padded_rank(places)
        self._memory = device.allocate(places.count * self._layout.size).view(places.count, self._layout.size)
        tensors = self._layout.placed(self._memory)
        self.layers = tuple(
            {
                name: Adapted(tensors[f"{index}.{name}.a"], tensors[f"{index}.{name}.b"], parts)
                for name, (parts, _) in _matrices(spec, index).items()
            }
            for index in range(spec.num_layers)
        )

    @property
    def count(self) -> int:
        return len(self._memory)

    def pack(self, weights: AdapterWeights) -> torch.Tensor:
        """An adapter as a place holds it, in pinned memory. Raises UnsupportedModel if its rank is too large."""
        if weights.rank > self._most:
            remedy = f"there is room for ranks up to {self._most}; pass --max-lora-rank {weights.rank}"
            raise UnsupportedModel("r", weights.rank, remedy)
        packed = self._device.pinned(self._layout.size)
        tensors = self._layout.placed(packed)
        for index, layer in enumerate(weights.layers):
            for name, (parts, _) in _matrices(self._spec, index).items():
                a, b, first = tensors[f"{index}.{name}.a"], tensors[f"{index}.{name}.b"], 0
                for number, (module, channels) in enumerate(zip(_modules(self._spec, name), parts, strict=True)):
                    if (part := layer.get(module)) is not None:
                        row = number * self._rank
                        a[row : row + part.rank] = host_tensor(part.a)
                        rows = in_rotary_order(self._spec, part.b) if module in ("q_proj", "k_proj") else part.b
                        b[first : first + channels, : part.rank] = host_tensor(rows).float() * part.scale
                    first += channels
        return packed

    def fill(self, place: int, packed: torch.Tensor) -> None:
        """For the steps launched from now on."""
        self._device.upload(self._memory[place], packed)


def _matrices(spec: ModelSpec, layer: int) -> dict[str, tuple[tuple[int, ...], int]]:
    """Outputs of each module, and inputs, of the matrices of a layer that may be adapted: experts' may not."""
    sizes, found = module_sizes(spec), dict[str, tuple[tuple[int, ...], int]]()
    for name in matrices(spec, spec.layers[layer]):
        modules = _modules(spec, name)
        found[name] = tuple(sizes[one][0] for one in modules), sizes[modules[0]][1]
    return found


def _modules(spec: ModelSpec, name: str) -> list[str]:
    """Those that this model has of a merged matrix: an MLP may have no gate."""
    sizes = module_sizes(spec)
    return [module for module in MERGED[name] if module in sizes]
