"""The requests that clients send, and what the model must answer: bodies drawn from a seed, each with its oracle."""

import random
from typing import Any, NamedTuple

import msgspec

from triolet.actors.gateway.history import History
from triolet.protocol.messages import Admit
from triolet.protocol.requests import Generate, TokenPrompt
from triolet.protocol.sampling import Sampling

from ...actors.simulation.device import EOS, VOCABULARY, expected_choices
from ...actors.simulation.front import require
from ...actors.simulation.house import expected_text, letter
from .wire import Answer

WHOLE = ("stop", "length")


class Ask(NamedTuple):
    """One request over HTTP, or the same in a WebSocket's frame."""

    name: str
    path: str
    body: dict[str, Any]  # Any: JSON values
    admit: Admit  # what it means
    fields: tuple[tuple[str, str], ...]

    def head_and_body(self) -> bytes:
        body = msgspec.json.encode(self.body)
        extra = "".join(f"{name}: {value}\r\n" for name, value in self.fields)
        head = f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\nX-Request-Id: {self.name}\r\n{extra}\r\n".encode() + body

    def check(self, answer: Answer, record: History | None) -> str:
        """The answer, against the oracle and its usage record; returns how it ended."""
        tokens, whole = 0, record is not None and record.reason in WHOLE and answer.terminals == ["done"]
        for index, choice in enumerate(expected_choices(self.admit)):
            text, reason, count = expected_text(self.admit, choice)
            tokens += count
            said = answer.texts.get(index, "")
            if whole:
                require(said == text, f"{self.name}[{index}] is {said!r}, not {text!r}")
                require(answer.reasons.get(index) == reason, f"{self.name}[{index}] ends {answer.reasons.get(index)}")
            else:  # what was held back, as it might have become a stop string, is said at an early end
                wholes = [text, *(text + stop for stop in self.admit.request.stop)]
                require(any(one.startswith(said) for one in wholes), f"{self.name}[{index}] says {said!r}: {text!r}")
        require(len(answer.terminals) <= 1, f"{self.name} ends twice: {answer.terminals}")
        require(len(answer.terminals) == 1 or bool(answer.cut), f"{self.name} has no end")
        if record is None:
            require(not answer.texts, f"{self.name} has text and no record")
            return answer.terminals[0] if answer.terminals else answer.cut
        used = record.usage.completion_tokens
        require(used == tokens if whole else used <= tokens, f"{self.name} is charged {used} tokens of {tokens}")
        if answer.terminals and answer.terminals != ["done"]:
            require(
                answer.terminals == [record.error], f"{self.name} was told {answer.terminals}, noted {record.error}"
            )
        if answer.terminals == ["done"] and answer.usage is not None:
            require(answer.usage["completion_tokens"] == used, f"{self.name} was told other tokens than noted: {used}")
            require(answer.usage["prompt_tokens"] == sum(map(len, self.admit.prompts)), f"{self.name}'s prompt")
        return "complete" if whole else answer.cut or answer.terminals[0]


def draw_ask(rng: random.Random, name: str, context: int, prefixes: list[tuple[int, ...]]) -> Ask:
    n, chat = rng.choice((1, 1, 1, 1, 2, 3)), rng.random() < 0.6
    prompts = tuple(_draw_prompt(rng, context, prefixes) for _ in range(1 if chat or rng.random() < 0.8 else 2))
    longest = context - max(map(len, prompts))
    max_tokens = min(rng.choice((1, 5, 20, 60, 150)), longest)
    stop = tuple(letter(rng.randrange(1, VOCABULARY)) * size for size in (1, 2) if rng.random() < 0.15)
    seed, ignore_eos, stream = rng.randrange(2**63), rng.random() < 0.5, rng.random() < 0.7
    body: dict[str, Any] = {"max_tokens": max_tokens, "seed": seed, "n": n, "ignore_eos": ignore_eos}
    if stop:
        body["stop"] = list(stop)
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if rng.random() < 0.2:
        body["priority"] = rng.choice((-1, 5))
    if rng.random() < 0.2:
        body["cache_salt"] = "salt"
    if rng.random() < 0.2:
        body["determinism"] = "strict"
    texts = ["".join(map(letter, prompt)) for prompt in prompts]
    if chat:
        body["messages"] = [{"role": "user", "content": texts[0]}]
    elif rng.random() < 0.5:
        body["prompt"] = texts
    else:
        body["prompt"] = list(map(list, prompts))
    request = Generate(
        id=name,
        model="sim",
        prompts=tuple(TokenPrompt(token_ids=prompt) for prompt in prompts),
        sampling=Sampling(seed=seed),
        n=n,
        stop=stop,
    )
    admit = Admit(
        request=request,
        prompts=prompts,
        max_tokens=(max_tokens,) * len(prompts),
        stop_token_ids=() if ignore_eos else (EOS,),
        eos_token_ids=(EOS,),
    )
    key = ("Authorization", f"Bearer {rng.choice(('one', 'two'))}")
    timeout = (("X-Request-Timeout", f"{rng.uniform(0.5, 20):.3f}"),) if rng.random() < 0.1 else ()
    path = "/v1/chat/completions" if chat else "/v1/completions"
    return Ask(name, path, body, admit, (key, *timeout))


def _draw_prompt(rng: random.Random, context: int, prefixes: list[tuple[int, ...]]) -> tuple[int, ...]:
    prefix = rng.choice(prefixes) if rng.random() < 0.5 else ()
    tail = tuple(rng.randrange(1, VOCABULARY) for _ in range(rng.choice((1, 10, 64, 130))))
    return (prefix + tail)[: context - 1]
