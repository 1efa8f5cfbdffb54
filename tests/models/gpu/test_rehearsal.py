"""The rehearsal device runs what a GPU would, later, and raises where a GPU would go wrong in silence."""

# Triton compiles add_kernel, and its functions are untyped.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from triolet.kernels.gpu.language import jit, tl
from triolet.models.gpu.arena import Arena, Layout
from triolet.models.gpu.device import DeviceFault, Growth
from triolet.models.gpu.rehearsal import POISON, RehearsalDevice

SIZE = 16


@jit
def add_kernel(source: Any, target: Any, amount: Any, SIZE: tl.constexpr) -> None:
    place = tl.arange(0, SIZE)
    tl.store(target + place, tl.load(source + place) + amount)


class House:
    """A device with two buffers on it and two on the host."""

    def __init__(self) -> None:
        self.device = RehearsalDevice()
        layout = Layout()
        layout.add("first", torch.int32, SIZE)
        layout.add("second", torch.int32, SIZE)
        self.arena = Arena(self.device, layout)
        self.host = Arena(self.device, layout, pinned=True)
        self.first, self.second = self.arena["first"], self.arena["second"]
        self.source, self.target = self.host["first"], self.host["second"]

    def add(self, amount: int = 5) -> None:
        add_kernel[(1,)](self.first, self.second, amount, SIZE)

    def step(self) -> None:
        self.device.upload(self.first, self.source)
        self.device.run(self.add)
        self.device.download(self.target, self.second)


@pytest.fixture
def house() -> House:
    return House()


def test_work_runs_in_order_when_an_event_behind_it_is_waited_for(house: House) -> None:
    house.source.fill_(2)
    house.step()
    event = house.device.record()
    house.device.run(lambda: house.second.fill_(99))
    assert torch.equal(
        house.target.view(torch.uint8), torch.full((4 * SIZE,), POISON, dtype=torch.uint8)
    )  # read too early
    event.wait()
    assert house.target.tolist() == [7] * SIZE
    assert house.second.tolist() == [7] * SIZE  # what is behind the event has not run
    house.device.synchronize()
    assert house.second.tolist() == [99] * SIZE


def test_a_pinned_buffer_overwritten_too_early_is_found(house: House) -> None:
    house.step()
    event = house.device.record()
    house.source.fill_(3)
    for _ in range(2):  # every later wait raises too
        with pytest.raises(DeviceFault, match="overwritten before"):
            event.wait()


def test_a_replay_runs_the_captured_launches_on_their_addresses(house: House) -> None:
    house.step()

    def add_and_double() -> None:
        house.add()
        house.second.mul_(2)

    graph = house.device.capture(add_and_double)
    house.device.synchronize()
    assert house.second.tolist() == [5] * SIZE  # a capture runs nothing
    house.source.fill_(10)
    house.device.upload(house.first, house.source)
    graph.replay()
    house.device.download(house.target, house.second)
    house.device.record().wait()
    assert house.target.tolist() == [30] * SIZE


def test_a_torch_operation_writes_where_it_is_told(house: House) -> None:
    weights = house.device.allocate(SIZE * 4).view(torch.float32).view(4, 4)
    out = house.device.allocate(SIZE * 4).view(torch.float32).view(4, 4)
    weights.copy_(torch.eye(4) * 3)
    house.device.run(lambda: torch.matmul(weights, weights.t(), out=out))
    assert not out.any()
    house.device.synchronize()
    assert torch.equal(out, torch.eye(4) * 9)


def faults() -> dict[str, tuple[Callable[[House], object], str]]:
    host = torch.zeros(SIZE, dtype=torch.int32)

    def compile_late(house: House) -> None:
        house.device.run(house.add)
        house.device.capture(lambda: house.add(1))

    def free(house: House) -> None:
        buffers = [house.device.allocate(SIZE)]
        graph = house.device.capture(lambda: buffers[0].fill_(1))
        buffers.clear()
        graph.replay()
        house.device.synchronize()

    def move(house: House) -> None:
        buffer = house.device.allocate(SIZE)
        graph = house.device.capture(lambda: buffer.fill_(1))
        buffer.resize_(1 << 20)
        graph.replay()
        house.device.synchronize()

    return {
        "allocates": (lambda h: h.device.capture(lambda: h.first + 1), "allocates memory during capture"),
        "reads": (lambda h: h.device.run(lambda: print(h.first.sum().item())), "reads a value back"),
        "branches": (lambda h: h.device.capture(lambda: print(bool(h.first[0]))), "reads a value back"),
        "host operand": (lambda h: h.device.run(lambda: h.first.copy_(host)), "takes a host tensor"),
        "host argument": (
            lambda h: h.device.run(lambda: add_kernel[(1,)](host, h.first, 5, SIZE)), "add_kernel takes a host tensor"
        ),
        "pinned argument": (lambda h: h.device.run(lambda: h.first.copy_(h.source)), "takes a host tensor"),
        "upload": (lambda h: h.device.upload(h.first, host), "not pinned"),
        "download": (lambda h: h.device.download(host, h.first), "not pinned"),
        "compiles": (compile_late, "compiled during capture"),
        "freed": (free, "memory that was freed"),
        "moved": (move, "memory that was moved"),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(faults()))
def test_a_broken_rule_raises(house: House, name: str) -> None:
    fault, message = faults()[name]
    with pytest.raises(DeviceFault, match=message):
        fault(house)


def test_growth_is_counted_after_the_seal(house: House) -> None:
    house.step()
    house.device.seal()
    house.step()
    house.device.run(lambda: house.add(7))  # 7 is of 5's specialisation
    assert house.device.growth() == Growth(0, 0)
    house.device.run(lambda: house.add(16))
    assert house.device.growth() == Growth(0, 1)
    house.device.run(lambda: print(house.first + house.second))
    assert house.device.growth().allocations > 0


def test_an_arena_is_aligned_and_apart() -> None:
    layout = Layout()
    layout.add("one", torch.int8, 3)
    layout.add("two", torch.bfloat16, 2, 5)
    layout.add("none", torch.float32, 0, 4)
    arena = Arena(RehearsalDevice(), layout)
    assert layout.size == 512
    assert arena["two"].data_ptr() - arena["one"].data_ptr() == 256
    arena["one"].fill_(1)
    assert not arena["two"].any()
    with pytest.raises(ValueError, match="already"):
        layout.add("one", torch.int8, 1)
