"""Embeddings, classes, scores and rankings: `triolet serve` with small encoders, and the official client of OpenAI."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ollama
import openai
import pytest
from openai import OpenAI
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from triolet.models.encoder.checkpoint import EncoderCheckpoint
from triolet.models.encoder.head import apply_head, end
from triolet.models.encoder.weights import load_encoder_weights
from triolet.models.reference.encoder import reference_hidden

from ..conftest import Server
from ..models.encoder.encoder_cases import make_case

WORDS = ["[PAD]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(40))]
PROMPTS = {"query": "w1 w2 ", "document": ""}
FloatArray = npt.NDArray[np.float32]
TEXTS = ["w3 w4 w5", "w6", "w7 " * 100, "w8 w9"]
CLS, SEP = 1, 2


def add_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = Whitespace()
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    marks = [("[CLS]", CLS), ("[SEP]", SEP)]
    tokenizer.post_processor = TemplateProcessing("[CLS] $A [SEP]", pair, marks)
    file = json.loads(tokenizer.to_str())
    # As the files of many models say: it is for whoever trained them.
    file["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(file))


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the files of sentence-transformers: prompts, cls pooling, normalised."""
    folder = make_case("bert", tmp_path_factory.mktemp("embedder")).folder
    add_tokenizer(folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    return folder


@pytest.fixture(scope="module")
def embedding_url(embedder: Path, serve_process: Callable[..., Server]) -> Server:
    return serve_process(str(embedder), "--threads", "1", "--max-running", "8")


def ids_of(text: str) -> list[int]:
    return [CLS, *(WORDS.index(word) for word in text.split()), SEP]


def vector_of(folder: Path, ids: list[int], types: list[int] | None = None) -> FloatArray:
    checkpoint = EncoderCheckpoint(folder)
    weights = load_encoder_weights(checkpoint, checkpoint.spec)
    return apply_head(checkpoint.head(weights.classifier), reference_hidden(checkpoint.spec, weights, ids, types))


def post(url: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:  # Any: JSON
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_openais_client_gets_the_vectors(embedder: Path, embedding_url: Server) -> None:
    """Its own default is base64; the numbers, the token ids and the shortened vectors are the same."""
    wanted = np.stack([vector_of(embedder, ids_of(text)) for text in TEXTS])
    with OpenAI(base_url=f"{embedding_url.url}/v1", api_key="none", max_retries=0) as client:
        (card,) = client.models.list().data
        answer = client.embeddings.create(model=card.id, input=TEXTS)
        found = np.array([item.embedding for item in answer.data], np.float32)
        assert np.abs(found - wanted).max() < 1e-4
        assert np.abs(found - np.roll(wanted, 1, axis=0)).max() > 1e-2
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(ids_of(text)) for text in TEXTS)
        numbers = client.embeddings.create(model=card.id, input=TEXTS, encoding_format="float")
        assert np.array_equal(np.array([item.embedding for item in numbers.data], np.float32), found)
        ids = client.embeddings.create(model=card.id, input=[ids_of(text) for text in TEXTS])
        assert np.array_equal(np.array([item.embedding for item in ids.data], np.float32), found)
        one = client.embeddings.create(model=card.id, input=ids_of(TEXTS[1])).data[0].embedding
        assert np.array_equal(np.array(one, np.float32), found[1])
        short = client.embeddings.create(model=card.id, input=TEXTS[0], dimensions=8).data[0].embedding
        assert np.abs(np.array(short) - end("normalise", wanted[0, :8])).max() < 1e-4
        query = client.embeddings.create(model=card.id, input="w3", extra_body={"prompt_name": "query"})
        assert np.abs(np.array(query.data[0].embedding) - vector_of(embedder, ids_of("w1 w2 w3"))).max() < 1e-4
        with pytest.raises(openai.BadRequestError, match="makes embeddings"):
            client.chat.completions.create(model=card.id, messages=[{"role": "user", "content": "w1"}])


def test_ollamas_client_gets_the_vectors(embedder: Path, embedding_url: Server) -> None:
    wanted, client = vector_of(embedder, ids_of(TEXTS[0])), ollama.Client(host=embedding_url.url)
    with client:
        (listed,) = client.list().models
        name = str(listed.model)
        assert client.show(name).capabilities == ["embedding"]
        answer = client.embed(name, [TEXTS[0], "w1 " * 300])
        assert np.abs(np.array(answer.embeddings[0]) - wanted).max() < 1e-4
        assert answer.prompt_eval_count == len(ids_of(TEXTS[0])) + 200  # the longer text is cut
        short = client.embed(name, TEXTS[0], dimensions=8)
        assert np.abs(np.array(short.embeddings[0]) - end("normalise", wanted[:8])).max() < 1e-4
        with pytest.raises(ollama.ResponseError, match="maximum context length"):
            client.embed(name, "w1 " * 300, truncate=False)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/embeddings", {"input": "w1 " * 199}, "input"),
    ("/v1/embeddings", {"input": ["w1", "w1 " * 199]}, "input[1]"),
    ("/v1/embeddings", {"input": ["w1", 3]}, "input[1]"),
    ("/v1/embeddings", {"input": [[3], "w1"]}, "input[1]"),
    ("/v1/embeddings", {"input": [1 << 20]}, "input"),
    ("/v1/embeddings", {"input": []}, "input"),
    ("/v1/embeddings", {"input": "w1", "dimensions": 5000}, "dimensions"),
    ("/v1/embeddings", {"input": "w1", "prompt_name": "answer"}, "prompt_name"),
    ("/v1/embeddings", {"input": "w1", "encoding_format": "hex"}, "encoding_format"),
    ("/v1/embeddings", {"input": "w1", "stream": True}, "stream"),
    ("/v1/completions", {"prompt": "w1"}, "model"),
    ("/v1/messages", {"model": "x", "max_tokens": 1, "messages": [{"role": "user", "content": "w1"}]}, ""),
    ("/v1/classify", {"input": "w1"}, "model"),
    ("/v1/rerank", {"query": "w1", "documents": ["w2"]}, "model"),
]


@pytest.mark.parametrize(("path", "body", "field"), REFUSED)
def test_what_this_model_does_not_do_is_refused_by_name(
    embedding_url: Server, path: str, body: dict[str, Any], field: str
) -> None:
    status, answer = post(embedding_url.url, path, body)
    assert status in (400, 404), answer
    assert not field or answer["error"]["param"] == field, answer


def test_a_long_text_is_cut_only_when_asked(embedder: Path, embedding_url: Server) -> None:
    body = {"input": "w1 " * 199, "truncate_prompt_tokens": -1}
    status, answer = post(embedding_url.url, "/v1/embeddings", body)
    assert (status, answer["usage"]["prompt_tokens"]) == (200, 200)
    wanted = vector_of(embedder, [CLS, *[WORDS.index("w1")] * 198, SEP])
    assert np.abs(np.array(answer["data"][0]["embedding"]) - wanted).max() < 1e-4


def test_a_dead_worker_loses_no_text_and_every_batch_gives_the_same_bits(embedding_url: Server) -> None:
    """Many requests of many texts at once, more than a step takes, and the worker dies among them."""
    bodies = [
        {"input": [f"w{(number * 7 + place) % 40} " * (1 + place * 9) for place in range(20)]} for number in range(6)
    ]
    alone = [post(embedding_url.url, "/v1/embeddings", body)[1]["data"] for body in bodies]
    with ThreadPoolExecutor(6) as threads:
        jobs = [threads.submit(post, embedding_url.url, "/v1/embeddings", body) for body in bodies]
        children = Path(f"/proc/{embedding_url.pid}/task/{embedding_url.pid}/children").read_text().split()
        worker = next(child for child in map(int, children) if b"worker" in Path(f"/proc/{child}/cmdline").read_bytes())
        os.kill(worker, signal.SIGKILL)
        together = [job.result() for job in jobs]
    assert [status for status, _ in together] == [200] * 6
    assert [answer["data"] for _, answer in together] == alone


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BERT with three labels; its scores are those of a model with one."""
    folder = make_case("bert-scores", tmp_path_factory.mktemp("reranker")).folder
    add_tokenizer(folder)
    return folder


def test_a_classifier_scores_texts_and_refuses_the_rest(
    reranker: Path, tmp_path_factory: pytest.TempPathFactory, serve_process: Callable[..., Server]
) -> None:
    server = serve_process(str(reranker), "--threads", "1")
    status, answer = post(server.url, "/v1/classify", {"input": ["w1 w2", "w3"]})
    assert status == 200, answer
    for item, text in zip(answer["data"], ["w1 w2", "w3"], strict=True):
        wanted = end("sigmoid", vector_of(reranker, ids_of(text)))  # several labels may apply
        assert np.abs(np.array(item["probs"]) - wanted).max() < 1e-4
        assert item["label"] == f"LABEL_{wanted.argmax()}"
    assert post(server.url, "/v1/embeddings", {"input": "w1"})[1]["error"]["param"] == "model"
    assert "one label" in post(server.url, "/v1/score", {"text_1": "w1", "text_2": "w2"})[1]["error"]["message"]


def test_a_reranker_ranks_pairs(tmp_path_factory: pytest.TempPathFactory, serve_process: Callable[..., Server]) -> None:
    """One label: a pair's token types tell its two texts apart."""
    folder = make_case("bert-reranker", tmp_path_factory.mktemp("pairs")).folder
    add_tokenizer(folder)
    server = serve_process(str(folder), "--threads", "1")
    documents = ["w2 w3", "w4", "w5 w6 w7"]
    wanted: list[float] = []
    for document in documents:
        first, second = ids_of("w1"), ids_of(document)[1:]
        types = [0] * len(first) + [1] * len(second)
        wanted.append(float(end("sigmoid", vector_of(folder, first + second, types))[0]))
    body = {"query": "w1", "documents": documents, "top_n": 2}
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        status, answer = post(server.url, path, body)
        assert status == 200, answer
        assert [item["index"] for item in answer["results"]] == sorted(range(3), key=lambda place: -wanted[place])[:2]
        for item in answer["results"]:
            place: int = item["index"]
            score: float = item["relevance_score"]
            assert abs(score - wanted[place]) < 1e-4
            assert item["document"]["text"] == documents[item["index"]]
    answer = post(server.url, "/v1/score", {"text_1": "w1", "text_2": documents})[1]
    scores: list[float] = [item["score"] for item in answer["data"]]
    assert max(abs(one - other) for one, other in zip(scores, wanted, strict=True)) < 1e-4
    single = vector_of(folder, ids_of("w1") + ids_of("w2 w3")[1:])  # without token types
    assert abs(float(end("sigmoid", single)[0]) - wanted[0]) > 1e-3
    assert post(server.url, "/v1/score", {"text_1": ["w1", "w2"], "text_2": ["w1"] * 3})[0] == 400
