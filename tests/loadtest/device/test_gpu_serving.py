"""The streaming clients of the GPU suite count every token once, and its random checkpoints are what they claim."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from msgspec import structs

from triolet.loadtest.client.reader import Pipe
from triolet.loadtest.device import gpu_streams
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_serving import figures_of
from triolet.loadtest.device.gpu_streams import streamed
from triolet.loadtest.device.random_model import (
    LLAMA_8B,
    QWEN_600M,
    TINY,
    config_of,
    named_tensors,
    random_checkpoint,
    random_weights,
)
from triolet.models.checkpoint.families.families import load_spec
from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.checkpoint.weights import load_weights

STREAM = (
    b"HTTP/1.1 200 OK\r\n\r\n"
    b'data: {"text": "word7 word12 wo"}\n\ndata: {"text": "word3"}\n\nwwordword\ndata: [DONE]\n\n'
)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, len(STREAM)])
def test_a_word_cut_by_two_reads_counts_once_in_the_second(size: int) -> None:
    ends = [*range(size, len(STREAM), size), len(STREAM)]
    found = streamed(STREAM, [(float(end), end) for end in ends])
    assert sum(tokens for _, tokens in found.arrivals) == STREAM.count(b"word") == 5
    first = STREAM.index(b"word") + len(b"word")
    assert found.arrivals[0][0] == next(end for end in ends if end >= first)
    assert (found.frames, found.fault) == (3, "")


def test_an_unfinished_or_refused_stream_says_so() -> None:
    assert streamed(STREAM[:-20], [(1.0, len(STREAM) - 20)]).fault == "the stream ended before [DONE]"
    assert "429 Too Many" in streamed(b"HTTP/1.1 429 Too Many Requests\r\n", []).fault
    assert streamed(b"", []).fault == "the connection ended without an answer"


def arrived(*times: float, fault: str = "", each: int = 1) -> dict[str, object]:
    return {"arrivals": [[time, each] for time in times], "frames": len(times) + 1, "fault": fault}


def test_the_rate_is_of_the_time_in_which_every_stream_gets_tokens() -> None:
    found = [arrived(1.0, 2.0, 3.0, 4.0), arrived(2.0, 3.0, 5.0, 6.0)]
    figures = figures_of(found, 2, 4, 0.0)
    assert figures["tokens_s"] == 1.5  # after 2 and up to 4: two at 3, one at 4
    assert figures["whole_run_tokens_s"] == 8 / 6
    assert figures["first_token_ms"] == 1500
    assert figures["tokens_per_frame"] == 1.0


def test_a_missing_token_or_a_failed_stream_is_wrong() -> None:
    with pytest.raises(Wrong, match="7 tokens came of 2 x 4"):
        figures_of([arrived(1.0, 2.0, 3.0, 4.0), arrived(2.0, 3.0, 5.0)], 2, 4, 0.0)
    with pytest.raises(Wrong, match="Too Many"):
        figures_of([arrived(fault="HTTP/1.1 429 Too Many Requests")], 1, 4, 0.0)


def test_a_random_checkpoint_is_read_as_the_model_it_was_made_from(tmp_path: Path) -> None:
    with random_checkpoint(TINY, [tmp_path / "nowhere", tmp_path]) as folder:
        checkpoint = open_checkpoint(folder)
        assert checkpoint.spec == TINY
        weights, made = load_weights(checkpoint), random_weights(TINY)
        assert weights.layers[0].down.tobytes() == made.layers[0].down.tobytes()
        assert weights.lm_head is not None
    assert not folder.exists()


@pytest.mark.parametrize("spec", [LLAMA_8B, QWEN_600M])
def test_configurations_say_what_the_models_are(spec: object, tmp_path: Path) -> None:
    assert spec in (LLAMA_8B, QWEN_600M)
    wanted = LLAMA_8B if spec == LLAMA_8B else QWEN_600M
    (tmp_path / "config.json").write_text(json.dumps(config_of(wanted)))
    assert load_spec(tmp_path) == wanted


def test_a_tied_model_has_no_head_of_its_own() -> None:
    tiny = structs.replace(TINY, tied_embeddings=True)
    assert "lm_head.weight" not in named_tensors(tiny)
    assert "lm_head.weight" in named_tensors(TINY)


def test_a_reset_connection_does_not_lose_the_other_streams(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(pipes: Sequence[Pipe], **_: object) -> int:
        for pipe, data in zip(pipes, (STREAM, STREAM[:-20], b""), strict=True):
            pipe.data[: len(data)] = data
            pipe.size = len(data)
            pipe.reads.append((1.0, pipe.size))
            pipe.close()
        raise ConnectionResetError(104, "reset by peer")

    monkeypatch.setattr(gpu_streams, "read_streams", read)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        load = gpu_streams.StreamedLoad(listener.getsockname()[1], 0, 3, 1, 1, 10)
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{json.dumps(asdict(load))}\ngo\n"))
        gpu_streams.main()
    found = json.loads(capsys.readouterr().out.splitlines()[1])
    assert [sum(tokens for _, tokens in one["arrivals"]) for one in found] == [5, 3, 0]
    assert [one["fault"] for one in found] == ["", *["reading stopped: [Errno 104] reset by peer"] * 2]
