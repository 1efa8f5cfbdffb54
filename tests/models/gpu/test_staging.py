"""What comes through the pinned buffers is what was put there, and no buffer is filled while it is still read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from triolet.models.checkpoint.stored import Weight
from triolet.models.gpu.device import DeviceFault
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.gpu.staging import Staging

SIZE = 100  # bytes of a buffer, so that tensors below end in any place of one


def device_tensor(device: RehearsalDevice, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return device.allocate(int(np.prod(shape)) * dtype.itemsize).view(dtype).view(shape)


def mapped(values: np.ndarray[tuple[int, ...], np.dtype[np.uint16]], path: Path) -> Weight:
    """As a checkpoint has it: read-only, and gone when the file is."""
    path.write_bytes(values.tobytes())
    return np.memmap(path, np.uint16, mode="r", shape=values.shape)


def test_tensors_arrive(tmp_path: Path) -> None:
    rng, device = np.random.default_rng(1), RehearsalDevice()
    bits = rng.integers(0, 1 << 14, (7, 33)).astype(np.uint16)
    floats = rng.standard_normal((5, 3)).astype(np.float32)
    codes = torch.from_numpy(rng.integers(0, 256, 137).astype(np.uint8))
    exact = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    wanted = {
        "bfloat16 as it is": (mapped(bits, tmp_path / "bits"), exact),
        "every other row": (bits[::2], exact[::2]),
        "bfloat16 widened": (bits, exact.float()),
        "float32 rounded": (floats, torch.from_numpy(floats).bfloat16()),
        "a tensor": (codes, codes),
        "of other strides": (codes[:100].view(10, 10).T, codes[:100].view(10, 10).T),
        "empty": (bits[:0], exact[:0]),
    }
    targets = {name: device_tensor(device, value.dtype, *value.shape) for name, (_, value) in wanted.items()}
    stacked = device_tensor(device, torch.bfloat16, 9, 33)
    with Staging(device, SIZE) as staging:
        for name, (source, _) in wanted.items():
            staging.put(targets[name], source)
        staging.put_rows(stacked, (bits[3:], bits[:5]))
    device.synchronize()
    for name, (_, value) in wanted.items():
        assert torch.equal(targets[name], value), name
    assert torch.equal(stacked, torch.cat([exact[3:], exact[:5]]))


def test_only_a_third_buffer_of_values_waits() -> None:
    device = RehearsalDevice()
    target = device_tensor(device, torch.uint8, 3 * SIZE)
    source = torch.arange(3 * SIZE).to(torch.uint8)
    with Staging(device, SIZE) as staging:
        staging.put(target[: SIZE // 2], source[: SIZE // 2])
        staging.put(target[SIZE // 2 : 2 * SIZE], source[SIZE // 2 : 2 * SIZE])
        source[: 2 * SIZE] = 0  # they were read
        assert not target.any()
        staging.put(target[2 * SIZE :], source[2 * SIZE :])
        assert target.tolist() == [*range(SIZE)] + [0] * 2 * SIZE
    device.synchronize()
    assert target.tolist() == [place % 256 for place in range(3 * SIZE)]


class NeverWaiting(RehearsalDevice):
    """Its events come too early."""

    def record(self) -> NeverWaiting:
        return self

    def wait(self) -> None:
        """Not at all."""


def test_filling_a_buffer_before_its_copy_is_a_fault() -> None:
    device = NeverWaiting()
    target = device_tensor(device, torch.uint8, 3 * SIZE)
    with Staging(device, SIZE) as staging:
        staging.put(target, torch.arange(3 * SIZE).to(torch.uint8))
    with pytest.raises(DeviceFault, match="overwritten before"):
        device.synchronize()
