"""The official client of OpenAI against `triolet serve` over TCP, with its worker process and the bundled model."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from ..conftest import Server

CHECKPOINT = Path(__file__).parents[2] / "models" / "demo" / "checkpoint"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is 3 plus 4?"}]
SOON = 60.0  # seconds: only a hang takes so long
FREED_SECONDS = 30.0  # a bound on a loaded machine; a step takes milliseconds


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: OpenAI) -> str:
    (card,) = client.models.list().data
    assert client.models.retrieve(card.id) == card
    return card.id


@pytest.fixture(scope="module")
def answer(client: OpenAI, model: str) -> str:
    """The greedy answer to QUESTION; what other ways of asking are compared with."""
    completion = client.chat.completions.create(model=model, messages=QUESTION, temperature=0)
    content = completion.choices[0].message.content
    assert content
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    return content


def test_a_streamed_chat_is_the_same_text(client: OpenAI, model: str, answer: str) -> None:
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = stream
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer
    assert sum(bool(chunk.choices[0].delta.content) for chunk in chunks) > 1
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0).usage
    assert whole is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (whole.prompt_tokens, whole.completion_tokens)


def test_logprobs_of_a_chat(client: OpenAI, model: str, answer: str) -> None:
    completion = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert b"".join(bytes(token.bytes or []) for token in logprobs.content).decode() == answer
    for token in logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob <= 0
        assert (token.top_logprobs[0].token, token.top_logprobs[0].logprob) == (token.token, token.logprob)
        values = [top.logprob for top in token.top_logprobs]
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_answer_has_the_logprobs_of_its_end(client: OpenAI, model: str, server: Server, stream: bool) -> None:
    """Programs that classify by one token read the first entry, whatever it is."""
    end = "<|im_end|>"
    (id,) = httpx.post(f"{server.url}/tokenize", json={"prompt": end}, timeout=SOON).json()["tokens"]
    create = cast("Callable[..., Any]", client.completions.create)
    chat = cast("Callable[..., Any]", client.chat.completions.create)
    options: dict[str, Any] = {"model": model, "logit_bias": {id: 100}, "temperature": 0, "stream": stream}
    answer = create(prompt="Hi", logprobs=2, **options)
    text = (next(iter(answer)) if stream else answer).choices[0]
    assert (text.text, text.logprobs.tokens, text.logprobs.text_offset) == ("", [end], [0])
    assert len(text.logprobs.top_logprobs[0]) == 3  # the two most probable, and the one that was chosen
    answer = chat(messages=QUESTION, logprobs=True, top_logprobs=2, **options)
    choice = (list(answer)[1] if stream else answer).choices[0]
    (last,) = choice.logprobs.content
    assert (last.token, last.bytes, len(last.top_logprobs)) == (end, None, 2)


def test_stop_cuts_the_text_and_counts_nothing_behind_it(client: OpenAI, model: str, answer: str) -> None:
    middle = answer[len(answer) // 2]
    completion = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, stop=[middle, "never"])
    choice = completion.choices[0]
    assert choice.message.content == answer[: answer.index(middle)]
    assert choice.finish_reason == "stop"
    assert choice.model_extra is not None
    assert choice.model_extra["stop_reason"] == middle


def test_a_seed_repeats_n_choices(client: OpenAI, model: str) -> None:
    def ask(seed: int) -> list[str | None]:
        completion = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell me a short story."}],
            temperature=1.5,
            n=2,
            seed=seed,
            max_tokens=24,
        )
        return [choice.message.content for choice in completion.choices]

    first = ask(7)
    assert len(first) == 2
    assert first[0] != first[1]
    assert ask(7) == first
    assert ask(8) != first


def test_max_tokens_ends_with_length(client: OpenAI, model: str) -> None:
    completion = client.chat.completions.create(model=model, messages=QUESTION, max_completion_tokens=2, temperature=0)
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 2


def test_completions_of_several_prompts(client: OpenAI, model: str) -> None:
    prompts = ["Once upon a time", "One, two, three"]
    together = client.completions.create(model=model, prompt=prompts, temperature=0, max_tokens=8)
    assert [choice.index for choice in together.choices] == [0, 1]
    assert together.usage is not None
    assert together.usage.completion_tokens <= 16
    alone = [client.completions.create(model=model, prompt=p, temperature=0, max_tokens=8) for p in prompts]
    assert [choice.text for choice in together.choices] == [completion.choices[0].text for completion in alone]


def test_a_streamed_completion_of_token_ids(client: OpenAI, model: str, server: Server) -> None:
    text = "Once upon a time"
    ids = httpx.post(f"{server.url}/tokenize", json={"prompt": text}, timeout=SOON).json()["tokens"]
    whole = client.completions.create(model=model, prompt=text, temperature=0, max_tokens=8).choices[0]
    chunks = list(client.completions.create(model=model, prompt=ids, temperature=0, max_tokens=8, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    assert httpx.post(f"{server.url}/detokenize", json={"tokens": ids}, timeout=SOON).json()["prompt"].endswith(text)


def test_echo_with_logprobs_covers_the_prompt(client: OpenAI, model: str) -> None:
    prompt = "Once upon a time"
    choice = client.completions.create(
        model=model, prompt=prompt, temperature=0, max_tokens=4, echo=True, logprobs=2
    ).choices[0]
    assert choice.text.startswith(prompt)
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.text_offset is not None
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs[1:])
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert choice.text[offset:].startswith(token)


def test_a_message_of_the_streaming_helper_comes_back(client: OpenAI, model: str, answer: str) -> None:
    """The helper adds `parsed` to it, and all the fields that the API ever had."""
    with client.chat.completions.stream(model=model, messages=QUESTION, temperature=0) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.content == answer
    thanks = cast("list[ChatCompletionMessageParam]", [*QUESTION, message, {"role": "user", "content": "Thanks"}])
    assert client.chat.completions.create(model=model, messages=thanks, max_tokens=4).choices


def test_the_remote_tokenizer_of_lm_eval(model: str, server: Server) -> None:
    """What it asks for: the special tokens and the template once, then ids without special tokens, and back."""
    info = httpx.get(f"{server.url}/tokenizer_info", timeout=SOON).json()
    assert (info["eos_token"], info["bos_token"], info["pad_token"]) == ("<|im_end|>", None, "<|endoftext|>")
    assert info["chat_template"] == (CHECKPOINT / "chat_template.jinja").read_text()
    asked = {"prompt": "Once upon a time", "add_special_tokens": False}
    tokens = httpx.post(f"{server.url}/tokenize", json=asked, timeout=SOON).json()["tokens"]
    again = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens}, timeout=SOON).json()
    assert again["prompt"] == "Once upon a time"


def test_an_echo_may_be_all(client: OpenAI, model: str) -> None:
    prompt = "Once upon a time"
    completion = client.completions.create(model=model, prompt=prompt, max_tokens=0, echo=True, logprobs=1)
    (choice,) = completion.choices
    assert (choice.text, choice.finish_reason) == (prompt, "length")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == prompt
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 0


def test_an_answer_continues_the_last_message(client: OpenAI, model: str, answer: str) -> None:
    middle = len(answer) // 2
    begun: list[ChatCompletionMessageParam] = [*QUESTION, {"role": "assistant", "content": answer[:middle]}]
    rest = client.chat.completions.create(
        model=model, messages=begun, temperature=0, extra_body={"continue_final_message": True}
    )
    assert answer[:middle] + (rest.choices[0].message.content or "") == answer


def test_closing_a_stream_frees_its_request(client: OpenAI, model: str, server: Server) -> None:
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + FREED_SECONDS
    while True:
        ledger = httpx.get(f"{server.url}/internal/ledger", timeout=SOON).json()
        if ledger["requests"] == 0 and ledger["kv_blocks"]["owned"] == 0:
            break
        assert time.monotonic() < deadline, ledger
    blocks = ledger["kv_blocks"]
    assert blocks["free"] + blocks["cached"] == blocks["total"]


@pytest.mark.parametrize(
    ("arguments", "error", "code", "param"),
    [
        ({"model": "none"}, openai.NotFoundError, "model_not_found", "model"),
        ({"temperature": 3}, openai.BadRequestError, "invalid_value", "temperature"),
        ({"n": 1000}, openai.BadRequestError, "integer_out_of_range", "n"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "context_length_exceeded", "max_tokens"),
        ({"functions": [{"name": "f"}]}, openai.BadRequestError, "unsupported_parameter", "functions"),
        ({"extra_body": {"best": 1}}, openai.BadRequestError, "unknown_parameter", "best"),
        ({"extra_headers": {"Origin": "https://x.example"}}, openai.PermissionDeniedError, "origin_forbidden", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_clients_own_classes(
    client: OpenAI,
    model: str,
    arguments: dict[str, Any],
    error: type[openai.APIStatusError],
    code: str,
    param: str | None,
    stream: bool,
) -> None:
    create = cast("Callable[..., object]", client.chat.completions.create)
    with pytest.raises(error) as caught:
        create(**({"model": model, "messages": QUESTION, "stream": stream} | arguments))
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.request_id


def test_a_prompt_beyond_the_context_is_a_bad_request(client: OpenAI, model: str) -> None:
    for words in (9_000, 400_000):  # the second is refused by its size alone, before it is tokenised
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model=model, prompt="word " * words)
        assert caught.value.code == "context_length_exceeded"
        assert "This model's maximum context length is 8192 tokens." in caught.value.message


def test_keys_and_a_full_house(serve_process: Callable[..., Server], model: str) -> None:
    server = serve_process("--api-key", "secret", "--max-requests", "1")
    url = f"{server.url}/v1"
    with OpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as unknown:
            stranger.chat.completions.create(model=model, messages=QUESTION)
        assert unknown.value.code == "invalid_api_key"
    with OpenAI(base_url=url, api_key="secret", max_retries=0) as client:
        # Nobody reads it, so it holds its place until it is closed, parked for want of credit.
        held = client.chat.completions.create(
            model=model, messages=QUESTION, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
        )
        with pytest.raises(openai.RateLimitError) as full:
            client.chat.completions.create(model=model, messages=QUESTION)
        assert full.value.code == "server_overloaded"
        assert full.value.response.headers["retry-after"] == "1"
        held.close()
    with OpenAI(base_url=url, api_key="secret", max_retries=10) as patient:  # retries as Retry-After tells it
        assert patient.chat.completions.create(model=model, messages=QUESTION, max_tokens=4).choices


def test_a_deadline_that_has_passed_is_not_tried_again(server: Server, model: str) -> None:
    answers: list[int] = []

    def note(answer: Any) -> None:  # Any: the SDK brings its own HTTP client
        answers.append(answer.status_code)

    http = openai.DefaultHttpxClient(event_hooks={"response": [note]})
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=3, http_client=http) as client:
        late = client.with_options(default_headers={"X-Request-Timeout": "0.00001"})
        with pytest.raises(openai.InternalServerError) as passed:
            late.chat.completions.create(model=model, messages=QUESTION)
    assert (passed.value.code, answers) == ("deadline_exceeded", [504])


def test_best_of_gives_the_most_probable_of_the_same_choices(server: Server) -> None:
    body: dict[str, Any] = {"prompt": "Once", "max_tokens": 8, "seed": 5, "temperature": 1.5}
    with httpx.Client(base_url=server.url, timeout=SOON) as http:
        all_three = http.post("/v1/completions", json=body | {"n": 3, "logprobs": 0}).json()
        best = http.post("/v1/completions", json=body | {"best_of": 3}).json()
    means = [
        sum(scores) / len(scores) for choice in all_three["choices"] if (scores := choice["logprobs"]["token_logprobs"])
    ]
    assert len(set(means)) == 3
    assert [choice["text"] for choice in best["choices"]] == [all_three["choices"][means.index(max(means))]["text"]]
    assert best["choices"][0]["logprobs"] is None
    assert best["usage"]["completion_tokens"] == all_three["usage"]["completion_tokens"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_tokens_of_prompt_and_answer_are_those_of_the_tokenizer(server: Server, path: str) -> None:
    asks = {"prompt": "Hello there"} if path == "/v1/completions" else {"messages": QUESTION}
    with httpx.Client(base_url=server.url, timeout=SOON) as http:
        ids = http.post("/tokenize", json=asks).json()["tokens"]
        body = asks | {"max_tokens": 12, "temperature": 0, "return_token_ids": True}
        whole = http.post(path, json=body | {"prompt_logprobs": 1}).json()
        stream = http.post(path, json=body | {"stream": True}).text
        said = http.post("/detokenize", json={"tokens": whole["choices"][0]["token_ids"]}).json()["prompt"]
    choice = whole["choices"][0]
    about = choice if path == "/v1/completions" else whole
    assert about["prompt_token_ids"] == ids
    assert [None, *(str(id) for id in ids[1:])] == [
        entry and next(iter(entry))
        for entry in about["prompt_logprobs"]  # the prompt's own token comes first
    ]
    text = choice["text"] if path == "/v1/completions" else choice["message"]["content"]
    assert said.startswith(text)
    pieces = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    drawn = [id for piece in pieces for part in piece["choices"] for id in part.get("token_ids", ())]
    assert drawn == choice["token_ids"]
    holders = [piece["choices"][0] if path == "/v1/completions" else piece for piece in pieces]
    assert [each["prompt_token_ids"] for each in holders if "prompt_token_ids" in each] == [ids]
