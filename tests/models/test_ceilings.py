"""That the loops which are timed do what is counted; sizes of caches. How fast they are is no test's business."""

from pathlib import Path

import numpy as np
import pytest

from triolet.kernels.simd import dot
from triolet.models.ceilings import caches_of
from triolet.models.dot_speed import SIDE, UNIT_FORMATS, Multiplier, UnitFormat
from triolet.models.read_speed import AT_ONCE, Reader


@pytest.mark.parametrize("unit", UNIT_FORMATS)
def test_a_job_computes_as_many_products_as_it_counts(unit: UnitFormat) -> None:
    multiplier = Multiplier(unit, 2, turns=10)
    multiplier.run()
    found = multiplier.sums()
    multiplier.close()
    sums = found if unit == "int8" else found.view(np.float32)
    # Ones times ones; without an unsigned unit, 128 is taken off an 8-bit code first.
    each = 1 if unit != "int8" or dot.codes_stay_unsigned() else -127
    assert sums.shape == (2, SIDE**2 * 16)
    assert (sums == 10 * dot.K_PER_STEP[unit] * each).all()
    assert multiplier.operations == 2 * abs(int(sums.sum(dtype=np.int64)) // each)


def test_a_job_reads_all_of_it_in_every_pass() -> None:
    reader = Reader(6 * AT_ONCE + 100, 2, parts=1, passes=3)
    reader.seconds()
    reader.close()
    integers = 6 * AT_ONCE // 4
    assert int(reader.sums.sum()) % 2**32 == 3 * integers * 0x01010101 % 2**32
    assert np.count_nonzero(reader.sums) == 2  # both threads had a part


def _cache(cpus: Path, core: int, index: int, *values: str) -> None:
    folder = cpus / f"cpu{core}/cache/index{index}"
    folder.mkdir(parents=True)
    for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=False):
        (folder / name).write_text(value + "\n")


def test_a_cache_that_cores_share_counts_once(tmp_path: Path) -> None:
    for core in (0, 1):
        _cache(tmp_path, core, 0, "1", "Data", "32K", str(core))
        _cache(tmp_path, core, 1, "2", "Unified", "1024K", str(core))
        _cache(tmp_path, core, 2, "3", "Unified", "32M", "0-1")
    assert caches_of([0, 1], tmp_path) == {"L2": 2 << 20, "L3": 32 << 20}
    assert caches_of([1], tmp_path) == {"L2": 1 << 20, "L3": 32 << 20}


def test_a_machine_that_does_not_tell_has_memory_alone(tmp_path: Path) -> None:
    assert caches_of([0], tmp_path) == {}
    _cache(tmp_path, 0, 0, "2", "Unified")  # no size
    assert caches_of([0], tmp_path) == {}
