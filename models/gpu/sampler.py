"""The device sampler on buffers of the arenas. Counts of seen tokens live on the device, a line for each counting slot.

The kernel that draws a token counts it, so the next step's penalties know it before the host does.
"""

from __future__ import annotations

import torch

from ...kernels.sampling.gpu_buffers import DeviceRows, DeviceSampled, Workspace, make_workspace
from ...kernels.sampling.gpu_launch import sample
from .arena import Arena, Layout
from .device import Device
from .sequences import counting_slots

SCRATCH = tuple(Workspace.__dataclass_fields__)


def sampler_layout(vocab_size: int, rows: int, slots: int, capability: int) -> Layout:
    layout, shapes = Layout(), make_workspace(rows, vocab_size, capability, "meta")
    for name in SCRATCH:
        tensor: torch.Tensor = getattr(shapes, name)
        layout.add(f"sampler.{name}", tensor.dtype, *tensor.shape)
    layout.add("seen", torch.int32, counting_slots(slots), vocab_size)
    layout.add("masks", torch.int32, 1, -(-vocab_size // 32))  # no row has a grammar
    return layout


class DeviceSampler:
    """Launches on the packet's rows, into the results."""

    def __init__(self, device: Device, buffers: Arena, packet: Arena) -> None:
        self._capability = device.capability
        self._workspace = Workspace(**{name: buffers[f"sampler.{name}"] for name in SCRATCH})
        self._rows = DeviceRows(
            words=packet["sampling"],
            seen_slots=packet["seen_slots"],
            mask_slots=packet["mask_slots"],
            edit_starts=packet["edit_starts"],
            edit_tokens=packet["edit_tokens"],
            edit_values=packet["edit_values"],
            seen=buffers["seen"],
            masks=buffers["masks"],
        )
        self._out = DeviceSampled(
            ids=buffers["drawn"],
            status=buffers["status"],
            logprobs=buffers["logprobs"],
            top_ids=buffers["top_tokens"],
            top_logprobs=buffers["top_logprobs"],
        )

    def sample(self, logits: torch.Tensor) -> None:
        """Draw from every row of logits."""
        sample(logits, self._rows, self._workspace, self._out, capability=self._capability)
