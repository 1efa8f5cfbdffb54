"""Beam search against `triolet serve` with the bundled model."""

import json
from time import monotonic
from typing import Any

import httpx
import pytest

from ..conftest import Server

SOON = 60.0  # seconds: only a hang takes so long
BODY: dict[str, Any] = {"prompt": "2 + 2", "max_tokens": 12}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "What is 3 plus 4?"}]}


def complete(server: Server, **fields: Any) -> Any:
    answer = httpx.post(f"{server.url}/v1/completions", json=BODY | fields, timeout=SOON)
    assert answer.status_code == 200, answer.text
    return answer.json()


def search(server: Server, **fields: Any) -> Any:
    return complete(server, use_beam_search=True, **fields)


def texts(answer: Any) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def test_one_beam_is_the_greedy_answer(server: Server) -> None:
    greedy, beam = (
        httpx.post(f"{server.url}/v1/chat/completions", json=CHAT | fields, timeout=SOON).json()
        for fields in ({"temperature": 0}, {"use_beam_search": True, "length_penalty": 0})
    )
    assert beam["choices"] == greedy["choices"]
    for part in ("prompt_tokens", "completion_tokens"):
        assert beam["usage"][part] == greedy["usage"][part]


def test_the_answers_come_best_first_and_are_better_than_the_greedy_one(server: Server) -> None:
    found = search(server, n=4, logprobs=1, return_token_ids=True)
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in found["choices"]]
    means = [total / len(choice["logprobs"]["tokens"]) for total, choice in zip(sums, found["choices"], strict=True)]
    assert means == sorted(means, reverse=True)
    assert len({choice["text"] for choice in found["choices"]}) == 4
    greedy = complete(server, temperature=0, logprobs=1)["choices"][0]["logprobs"]["token_logprobs"]
    assert means[0] > sum(greedy) / len(greedy)
    # A prompt's tokens are scored all at once: the same text gets the same log probabilities.
    best = found["choices"][0]
    ids = best["prompt_token_ids"] + best["token_ids"]
    count = len(best["token_ids"])
    again = complete(server, prompt=ids, max_tokens=0, echo=True, logprobs=1)["choices"][0]["logprobs"]
    assert again["tokens"][-count:] == best["logprobs"]["tokens"]
    assert again["token_logprobs"][-count:] == pytest.approx(best["logprobs"]["token_logprobs"], abs=1e-3)
    assert again["top_logprobs"][-1].keys() == best["logprobs"]["top_logprobs"][-1].keys()


def test_the_same_again_alone_in_a_stream_and_by_best_of(server: Server) -> None:
    first = search(server, n=3, return_token_ids=True)
    assert search(server, n=3, return_token_ids=True)["choices"] == first["choices"]
    best = search(server, n=1, best_of=3, return_token_ids=True)
    assert best["choices"] == first["choices"][:1]
    # The other beams only widened the search.
    assert best["usage"]["completion_tokens"] == len(best["choices"][0]["token_ids"])
    stream = httpx.post(
        f"{server.url}/v1/completions", json=BODY | {"use_beam_search": True, "n": 3, "stream": True}, timeout=SOON
    )
    *events, end = [line.removeprefix("data: ") for line in stream.text.splitlines() if line]
    assert end == "[DONE]"
    pieces = [choice for event in events for choice in json.loads(event)["choices"] if choice["text"]]
    assert {piece["index"]: piece["text"] for piece in pieces} == dict(enumerate(texts(first)))
    both = search(server, prompt=["Hello", BODY["prompt"]], n=3)
    assert texts(both)[3:] == texts(first)


def test_a_stop_string_cuts_the_answers(server: Server) -> None:
    whole = texts(search(server, n=2))
    stop = whole[0][5:7]
    answer = search(server, n=2, stop=stop)
    assert texts(answer) == [text.split(stop)[0] for text in whole]
    cut = answer["choices"]
    assert (cut[0]["finish_reason"], cut[0]["stop_reason"]) == ("stop", stop)


def test_a_client_that_leaves_leaves_nothing_behind(server: Server) -> None:
    body = CHAT | {"use_beam_search": True, "n": 4, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=SOON) as stream:
        lines = stream.iter_lines()
        assert "assistant" in next(lines)  # the search has begun
        ledger = httpx.get(f"{server.url}/internal/ledger", timeout=SOON).json()
        assert ledger["requests"] == 1
        assert ledger["kv_blocks"]["owned"] > 0
    deadline = monotonic() + SOON
    while ledger["requests"] or ledger["kv_blocks"]["owned"]:
        assert monotonic() < deadline, ledger
        ledger = httpx.get(f"{server.url}/internal/ledger", timeout=SOON).json()
