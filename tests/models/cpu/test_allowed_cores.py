"""The number of threads follows the CPUs and the quota of the process while steps run, and no token depends on it."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from triolet.kernels.threads.shares import Crew, taking_part
from triolet.models.cpu import allowed_cores
from triolet.models.cpu.allowed_cores import AllowedCores, followed_cores
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.memory import CpuSizes
from triolet.models.cpu.stepper import CpuStepper
from triolet.protocol.sampling import Sampling

from .test_steady_rows import SPEC, Life, small_weights

MOST = 6


class Host:
    """A control group of version 2 and CPUs that can be changed; each CPU is a core of its own."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cpus = set(range(8))
        self._root = root
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text("0::/\n")
        (root / "cgroup").mkdir()
        self.quota("max")
        monkeypatch.setattr("os.sched_getaffinity", self._affinity)

    def _affinity(self, _pid: int) -> set[int]:
        return set(self.cpus)

    def quota(self, text: str) -> None:
        (self._root / "cgroup/cpu.max").write_text(f"{text} 100000\n")

    def cores(self, first: int) -> AllowedCores:
        return AllowedCores(MOST, first, self._root / "nowhere", self._root / "proc", self._root / "cgroup")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_quota_and_cpus_are_looked_up_again(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "triolet.threads")
    cores, used = host.cores(MOST), list[int]()
    cores.follow(10.0, used.append)
    assert (used, caplog.messages) == ([MOST], [])
    host.quota("350000")
    cores.follow(10.9, used.append)  # too soon
    assert used == [MOST]
    cores.follow(11.0, used.append)
    cores.follow(12.0, used.append)  # nothing new
    assert used == [MOST, 3]
    assert caplog.messages == ["the CPU quota or the set of CPUs has changed: steps use 3 of 6 threads"]
    changes: list[tuple[Callable[[], None], int]] = [
        (lambda: host.quota("50000"), 1),
        (lambda: host.quota("9900000"), MOST),
        (lambda: host.cpus.intersection_update({1, 2, 3, 4}), 4),
        (lambda: host.quota("200000"), 2),
    ]
    for number, (change, expected) in enumerate(changes):
        change()
        cores.follow(20.0 + number, used.append)
        assert used[2:][number:] == [expected]
    caplog.clear()
    host.cpus = {5, 6, 7}  # as many threads, on other cores
    cores.follow(30.0, used.append)
    assert (used[-2:], caplog.messages) == ([2, 2], [])


def test_a_refused_thread_is_no_failure(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_threads: int) -> None:
        raise RuntimeError("can't start new thread")

    cores, used = host.cores(2), list[int]()
    cores.follow(1.0, refuse)
    cores.follow(2.0, used.append)  # it would be refused again
    assert used == []
    assert caplog.messages == ["steps go on with 2 threads; 6 were allowed: can't start new thread"]
    host.quota("400000")
    cores.follow(3.0, used.append)
    assert used == [4]


def test_a_given_number_of_threads_is_not_followed() -> None:
    sizes = CpuSizes(weight_format="int8", max_step_tokens=1, max_logit_rows=1, max_model_len=1, threads=4)
    assert followed_cores(sizes) is None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_stay_the_same_while_the_quota_changes(
    host: Host, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    monkeypatch.setattr(allowed_cores, "LOOK_SECONDS", 0.0)
    sizes = CpuSizes(
        weight_format="float32", num_blocks=18, max_step_tokens=192, max_logit_rows=16, max_model_len=192,
        threads=MOST, first_threads=2,
    )  # fmt: skip
    runner = CpuRunner(SPEC, small_weights(), sizes)
    pool = runner._pool

    def tokens(cores: AllowedCores | None) -> tuple[object, list[int]]:
        life, parts = Life(runner), list[int]()
        life.stepper = CpuStepper(runner, cores=cores)
        for number in range(6):
            life.start(number, 30 + 9 * number, Sampling(temperature=temperature, seed=number))
        for quota in ("max", "100000", "300000", "200000", "max"):
            host.quota(quota)
            for _ in range(4):
                life.step(*range(6))
                parts.append(taking_part(Crew(pool.state, 0, MOST)))
        return life.said, parts

    said, parts = tokens(None)
    assert parts == [2] * 20
    again, followed = tokens(host.cores(2))
    assert followed == [6] * 4 + [1] * 4 + [3] * 4 + [2] * 4 + [6] * 4
    assert again == said
    runner.close()
