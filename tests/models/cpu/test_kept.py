"""Packed weights that a second start reads from the disk: equal, or not used."""

import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fcntl import LOCK_EX, flock
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from triolet.models.checkpoint.families.families import load_spec
from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.cpu import kept
from triolet.models.cpu.kept import CHUNK, HEADER_BYTES, KeptWeights, checksums, identity_of, open_kept_weights
from triolet.models.cpu.load import load_runner
from triolet.models.cpu.memory import CpuSizes
from triolet.models.cpu.rows import Batch
from triolet.protocol.steps import LoadProgress, ignore_progress

DEMO = Path(__file__).parents[3] / "models/demo/checkpoint"
SIZE = 2 * CHUNK + 70_000
BATCH = Batch(
    tokens=np.array([3, 4, 5], np.int32),
    positions=np.arange(3, dtype=np.int32),
    starts=np.array([0, 3], np.int32),
    block_tables=np.zeros((1, 1), np.int32),
    logit_rows=np.array([2], np.int32),
)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def weights() -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)


@pytest.fixture
def saved(tmp_path: Path, weights: npt.NDArray[np.uint8], threads: ThreadPoolExecutor) -> KeptWeights:
    found = KeptWeights(tmp_path, Path("folder/model"), "int8", "identity")
    found.save(weights)
    return found


@pytest.fixture(params=[True, False], ids=["mapped", "copied"])
def huge(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to load, wherever the tests run."""
    monkeypatch.setattr(kept, "has_huge_pages", Mock(return_value=request.param))


@pytest.mark.usefixtures("huge")
def test_what_was_saved_is_loaded(
    saved: KeptWeights, weights: npt.NDArray[np.uint8], threads: ThreadPoolExecutor
) -> None:
    told = list[LoadProgress]()
    loaded = saved.load(SIZE, threads, told.append)
    assert loaded is not None
    np.testing.assert_array_equal(loaded, weights)
    assert [progress.done for progress in told] == [CHUNK, 2 * CHUNK, SIZE]
    assert told[-1].total == SIZE
    assert [path.name for path in saved.path.parent.iterdir()] == [saved.path.name]


@pytest.mark.usefixtures("huge")
@pytest.mark.parametrize("place", [0, CHUNK + 1, SIZE - 1, SIZE + 5, SIZE + 3 * 8 + 20])
def test_a_damaged_file_is_not_used(
    saved: KeptWeights, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture, place: int
) -> None:
    with saved.path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))
    with caplog.at_level(logging.WARNING):
        assert saved.load(SIZE, threads, ignore_progress) is None
    assert place > SIZE + 3 * 8 or "are not used, and are written anew" in caplog.text


@pytest.mark.usefixtures("huge")
@pytest.mark.parametrize("size", [0, HEADER_BYTES, CHUNK, SIZE, SIZE + 3 * 8 + HEADER_BYTES - 1])
def test_a_file_that_is_cut_short_is_not_used(saved: KeptWeights, threads: ThreadPoolExecutor, size: int) -> None:
    os.truncate(saved.path, size)
    assert saved.load(SIZE, threads, ignore_progress) is None


def test_a_file_that_lacks_a_chunk_is_not_used(saved: KeptWeights, threads: ThreadPoolExecutor) -> None:
    content = saved.path.read_bytes()
    saved.path.write_bytes(content[CHUNK:])
    assert saved.load(SIZE, threads, ignore_progress) is None


@given(st.data())
def test_no_change_of_a_word_and_no_exchange_of_two_is_missed(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 400))
    source = np.random.default_rng(size).integers(0, 256, 8 * size, np.uint8)
    changed = source.copy()
    words = changed.view(np.uint64)
    first, second = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True))
    words[first] ^= np.uint64(data.draw(st.integers(1, 2**64 - 1)))
    assert (checksums(changed) != checksums(source)).any()
    changed[:] = source
    words[[first, second]] = words[[second, first]]
    assert (checksums(changed) != checksums(source)).any()


def test_the_weights_of_something_else_are_not_used(
    saved: KeptWeights, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    folder, model = saved.path.parent, Path("folder/model")
    assert KeptWeights(folder, model, "int8", "another").load(SIZE, threads, ignore_progress) is None
    assert KeptWeights(folder, model, "int4", "identity").load(SIZE, threads, ignore_progress) is None
    assert KeptWeights(folder, Path("other/model"), "int8", "identity").load(SIZE, threads, ignore_progress) is None
    assert saved.load(SIZE - 1, threads, ignore_progress) is None
    assert not caplog.text


def test_a_file_that_cannot_be_read_is_not_used(
    saved: KeptWeights, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as of a disk with an error: touching the mapping would end the process."""
    monkeypatch.setattr(kept, "has_huge_pages", Mock(return_value=True))
    monkeypatch.setattr(kept, "read_pages", Mock(side_effect=[True, False, True]))
    assert saved.load(SIZE, threads, ignore_progress) is None
    assert "cannot be read" in caplog.text


def test_a_read_may_bring_less_than_was_asked_for(
    saved: KeptWeights, weights: npt.NDArray[np.uint8], threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.preadv

    def read_less(file: int, parts: list[memoryview], at: int) -> int:
        return read(file, [parts[0][:70_001]], at)

    monkeypatch.setattr(kept, "has_huge_pages", Mock(return_value=False))
    monkeypatch.setattr(os, "preadv", read_less)
    loaded = saved.load(SIZE, threads, ignore_progress)
    assert loaded is not None
    np.testing.assert_array_equal(loaded, weights)


def test_only_a_file_of_this_model_is_read_ahead(saved: KeptWeights) -> None:
    folder, model = saved.path.parent, Path("folder/model")
    assert saved.is_current()
    assert not KeptWeights(folder, model, "int8", "another").is_current()
    assert not KeptWeights(folder, model, "int4", "identity").is_current()
    os.truncate(saved.path, 10)
    assert not saved.is_current()


def test_what_a_killed_writer_left_is_written_over(tmp_path: Path, weights: npt.NDArray[np.uint8]) -> None:
    kept_weights = KeptWeights(tmp_path, Path("model"), "int8", "identity")
    (tmp_path / f".{kept_weights.path.name}.unfinished").write_bytes(b"unfinished" * SIZE)
    kept_weights.save(weights)
    assert kept_weights.path.stat().st_size == SIZE + 3 * 8 + HEADER_BYTES
    assert [*tmp_path.iterdir()] == [kept_weights.path]


def test_of_two_that_write_at_once_one_does(
    tmp_path: Path, weights: npt.NDArray[np.uint8], caplog: pytest.LogCaptureFixture
) -> None:
    kept_weights = KeptWeights(tmp_path, Path("model"), "int8", "identity")
    with (tmp_path / f".{kept_weights.path.name}.unfinished").open("wb") as others:
        flock(others, LOCK_EX)
        kept_weights.save(weights)
        assert not kept_weights.path.exists()
        assert not caplog.text
    kept_weights.save(weights)
    assert kept_weights.is_current()


def test_a_file_that_another_finished_meanwhile_is_left_as_it_is(
    saved: KeptWeights, weights: npt.NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was opened under its first name, and has its last one when its lock is free."""
    unfinished, content = saved.path.with_name(f".{saved.path.name}.unfinished"), saved.path.read_bytes()
    saved.path.rename(unfinished)

    def finish(file: object, how: int) -> None:
        unfinished.rename(saved.path)

    monkeypatch.setattr(kept, "flock", finish)
    KeptWeights(saved.path.parent, Path("folder/model"), "int8", "another").save(weights[::-1])
    assert saved.path.read_bytes() == content


def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path,
    weights: npt.NDArray[np.uint8],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(kept, "SPARE_BYTES", 1 << 60)
    with caplog.at_level(logging.WARNING):
        KeptWeights(tmp_path, Path("model"), "int8", "identity").save(weights)
    assert "the packed weights are not kept" in caplog.text
    assert not list(tmp_path.iterdir())


def test_the_identity_follows_the_files_the_model_and_the_format(tmp_path: Path) -> None:
    spec, file = load_spec(DEMO), tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    status = file.stat()
    first = identity_of([file], spec, "int8")
    assert identity_of([file], spec, "int8") == first
    assert identity_of([file], spec, "int4") != first
    assert identity_of([file], replace(spec, norm_eps=2e-5), "int8") != first
    file.write_bytes(b"Weights")  # as long, and its time is set back
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert identity_of([file], spec, "int8") != first


def test_a_second_start_packs_nothing_and_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    checkpoint = open_checkpoint(DEMO)
    sizes = CpuSizes(weight_format="int8", max_step_tokens=4, max_logit_rows=1, max_model_len=64)
    answers = list[npt.NDArray[np.float32]]()
    for stage in ("packing weights", "reading packed weights"):
        told = list[LoadProgress]()
        kept_weights = open_kept_weights(DEMO, checkpoint.weight_files, checkpoint.spec, "int8")
        runner = load_runner(checkpoint, sizes, told.append, kept_weights)
        answers.append(runner.forward(BATCH).copy())
        runner.close()
        for thread in threading.enumerate():
            if thread.name == "triolet-keeping":
                thread.join()
        assert {progress.stage for progress in told if progress.unit == "bytes"} == {stage}
    np.testing.assert_array_equal(answers[0], answers[1])
    assert not caplog.text
