"""A real control group with a quota of processor time: what a process inside it takes itself to have.

Skipped where the machine lets nobody make one (most containers).
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from triolet.models.host import CGROUP, usable_cores

PERIOD = 100_000  # microseconds
INSIDE = """
import sys
from pathlib import Path

Path(sys.argv[1], "cgroup.procs").write_text("0")  # this process
from triolet.models.host import usable_cores

print(usable_cores())
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """An empty group of the version that this machine has."""
    parent = CGROUP if (CGROUP / "cgroup.controllers").exists() else CGROUP / "cpu"
    folder = parent / f"triolet-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as refused:
        pytest.skip(f"no control group can be made here: {refused}")
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()


def set_quota(group: Path, microseconds: int) -> None:
    try:
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(microseconds))
        else:
            (group / "cpu.max").write_text(f"{microseconds} {PERIOD}")
    except OSError as refused:
        pytest.skip(f"control groups have no quota here: {refused}")


@pytest.mark.parametrize(("share", "cores"), [(1.0, 1), (1.5, 1), (0.5, 1), (64.0, None)])
def test_threads_follow_the_quota_of_the_group_they_run_in(group: Path, share: float, cores: int | None) -> None:
    set_quota(group, int(share * PERIOD))
    told = subprocess.run(
        [sys.executable, "-c", INSIDE, str(group)], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(told.stdout) == (usable_cores() if cores is None else cores)


FOLLOWING = """
import os, sys
from pathlib import Path

Path(sys.argv[1], "cgroup.procs").write_text("0")
from triolet.models.cpu.allowed_cores import AllowedCores

cores, now = AllowedCores(len(os.sched_getaffinity(0)), 1), 0.0
for _ in sys.stdin:
    now += 10
    used = []
    cores.follow(now, used.append)
    print(*used, flush=True)
"""


def test_a_quota_that_changes_is_seen(group: Path) -> None:
    set_quota(group, 64 * PERIOD)
    most = usable_cores()
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOWING, str(group)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for quota, told in ((64, str(most)), (64, ""), (1, "1"), (64, str(most))):
            set_quota(group, quota * PERIOD)
            print(file=process.stdin, flush=True)
            assert process.stdout.readline().strip() == told
        process.stdin.close()
