"""Memory is spread over the nodes of the process's CPUs. The system calls are real: the kernel leaves out the nodes
that this machine has not. Each policy is set in a thread of its own, with which it ends.
"""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from triolet.models.cpu import numa
from triolet.models.cpu.numa import interleave_memory, memory_policy, nodes_of
from triolet.models.pages import zeroed_pages

DEFAULT, PREFERRED, INTERLEAVE = 0, 1, 3


def system(root: Path, **lists: str) -> Path:
    for name, cpus in lists.items():
        (root / name).mkdir()
        (root / name / "cpulist").write_text(cpus + "\n")
    (root / "has_cpu").write_text("0\n")
    return root


def in_thread(job: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            job()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize(
    ("cpus", "nodes"),
    [
        ({0}, [0]),
        ({3, 16}, [0]),
        ({3, 4}, [0, 1]),
        ({23, 9}, [1, 10]),
        ({0, 4, 8, 30}, [0, 1, 10]),
        ({30}, []),
    ],
)
def test_the_nodes_of_cpus(tmp_path: Path, cpus: set[int], nodes: list[int]) -> None:
    root = system(tmp_path, node0="0-3,16-19", node1="4-7,20-23", node10="8,9", node2="", node3="what")
    assert nodes_of(cpus, root) == nodes
    assert nodes_of(cpus, tmp_path / "nowhere") == []


@pytest.fixture
def spanned(tmp_path: Path) -> Path:
    """Each CPU of this process is on a node of its own, and there are two at least."""
    try:
        memory_policy()
    except OSError as refused:
        pytest.skip(f"memory policies are refused here: {refused}")
    first, *others = sorted(os.sched_getaffinity(0))
    return system(tmp_path, node0=str(first), node1=",".join(map(str, [first, *others])))


def test_a_thread_and_those_that_it_starts_spread_their_memory(spanned: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "triolet.memory")

    told = list[str]()

    def load() -> None:
        assert memory_policy() == (DEFAULT, set())
        interleave_memory(spanned)
        mode, nodes = memory_policy()
        assert mode == INTERLEAVE
        assert 0 in nodes
        assert nodes <= {0, 1}
        told.append(",".join(map(str, sorted(nodes))))
        in_thread(lambda: check(memory_policy() == (mode, nodes)))
        pages = zeroed_pages(1 << 22)
        pages.fill(1)
        maps = Path("/proc/thread-self/numa_maps")
        if maps.exists():  # a kernel's option
            line = next(line for line in maps.read_text().splitlines() if int(line.split()[0], 16) == pages.ctypes.data)
            assert line.split()[1].startswith("interleave:0")

    in_thread(load)
    assert memory_policy()[0] == DEFAULT  # of others
    assert caplog.messages == [f"weights and KV cache are spread over the NUMA nodes {told[0]}"]


def test_one_node_changes_nothing(tmp_path: Path) -> None:
    before = memory_policy() if os.access("/proc/self/numa_maps", os.R_OK) else None

    def load() -> None:
        interleave_memory(system(tmp_path, node0="0-4095", node1=""))
        assert before is None or memory_policy() == before

    in_thread(load)


def test_a_policy_that_was_set_before_stays(spanned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(numa, "_INTERLEAVE", PREFERRED)
            interleave_memory(spanned)  # stands for numactl --preferred
        mode, nodes = memory_policy()
        assert mode == PREFERRED
        interleave_memory(spanned)
        assert memory_policy() == (PREFERRED, nodes)

    in_thread(load)


def test_a_refusal_is_said_and_no_failure(
    spanned: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Docker's seccomp profile answers EPERM to both calls; here the kernel refuses one that has no such mode."""
    monkeypatch.setattr(numa, "_INTERLEAVE", 77)
    in_thread(lambda: interleave_memory(spanned))
    (message,) = caplog.messages
    assert "NUMA nodes 0,1" in message
    assert "Invalid argument" in message
    assert "--cap-add SYS_NICE" in message
    assert "numactl --interleave=0,1" in message


def check(condition: bool) -> None:  # a lambda cannot assert
    assert condition
