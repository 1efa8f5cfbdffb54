"""Gateway, detokenizer and clients in one: they stand at the scheduler's border and know what must come over it.

Every request has a client with a habit (patient, slow, granting credit itself, leaving, stalling). The desk checks what
arrives against the oracle, token by token, and writes exactly one terminal event per request.
"""

import random
from collections.abc import Iterator

import trio

from triolet.protocol.events import FinishReason, TokenLogprob
from triolet.protocol.messages import (
    Admit,
    Cancel,
    ChoiceTokens,
    Credit,
    DropRequest,
    OpenChoice,
    StepTokens,
    Stop,
    ToDetokenizer,
    ToScheduler,
)

from .device import beyond_credit, expected_choices, expected_prompt_logprobs
from .scenario import Log


class SimulationError(AssertionError):
    """A promise of the scheduler is broken."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise SimulationError(message)


class Choice:
    """What one choice must say, and what came of it."""

    def __init__(self, admit: Admit, index: int, expected: Iterator[int], stop_after: int | None) -> None:
        number = index // admit.request.n
        self.prompt = admit.prompts[number]
        sampling = admit.request.sampling
        self.expected: list[int] = []
        self.reason: FinishReason = "length"
        self.scores = expected_prompt_logprobs(self.prompt) if sampling.prompt_logprobs is not None else []
        for token in expected:
            if token in admit.stop_token_ids and len(self.expected) >= sampling.min_tokens:
                self.reason = "stop"
                break
            self.expected.append(token)
        self.stop_after = stop_after  # as if a stop string were found after so many tokens
        self.came: list[int] = []
        self.scored: list[TokenLogprob] = []
        self.opened = False
        self.ended = False

    def take(self, tokens: ChoiceTokens) -> None:
        require(self.opened and not self.ended, f"tokens for choice {tokens.id}[{tokens.index}] out of its life")
        require(not self.came or not tokens.prompt_logprobs, "prompt log probabilities after the first token")
        self.scored.extend(tokens.prompt_logprobs)
        self.came.extend(tokens.tokens)
        require(self.came == self.expected[: len(self.came)], f"wrong tokens in {tokens.id}[{tokens.index}]")
        if self.came:
            require(self.scored == self.scores, f"wrong prompt log probabilities in {tokens.id}[{tokens.index}]")
        if tokens.reason is not None:
            require(tokens.reason == self.reason, f"{tokens.id} ended with {tokens.reason}, not {self.reason}")
            require(self.came == self.expected, f"{tokens.id}[{tokens.index}] ended before its end")
            require(self.scored == self.scores, f"{tokens.id}[{tokens.index}] lacks prompt log probabilities")
            self.ended = True


class Stream:
    """A request as its client sees it."""

    def __init__(self, admit: Admit, rng: random.Random) -> None:
        self.admit = admit
        self.id = admit.request.id
        self.choices = [
            Choice(admit, index, expected, rng.randrange(1, 60) if rng.random() < 0.15 else None)
            for index, expected in enumerate(expected_choices(admit))
        ]
        self.unread = 0  # tokens delivered and not taken by the client
        self.ahead = 0  # credit given and not delivered yet
        self.arrived = trio.lowlevel.ParkingLot()
        self.terminal: str | None = None

    def end(self, reason: str) -> None:
        require(self.terminal is None, f"a second terminal event for {self.id}: {self.terminal}, then {reason}")
        self.terminal = reason
        self.arrived.unpark_all()


class FrontDesk:
    """Receives what the scheduler says and keeps the streams."""

    def __init__(self, scheduler: trio.MemorySendChannel[ToScheduler], log: Log) -> None:
        self.streams: dict[str, Stream] = {}
        self.live: dict[str, Stream] = {}
        self.scheduler = scheduler
        self._log = log

    def submit(self, stream: Stream, credit: int) -> None:
        stream.ahead = credit
        self.streams[stream.id] = self.live[stream.id] = stream
        self.scheduler.send_nowait(stream.admit)

    def cancel(self, stream: Stream) -> None:
        """The client left: its terminal event is written at once, and the scheduler hears of it."""
        if self.live.pop(stream.id, None):
            stream.end("cancelled")
            self.scheduler.send_nowait(Cancel(id=stream.id))

    def give(self, stream: Stream, tokens: int) -> None:
        if tokens:
            stream.ahead += tokens
            self.scheduler.send_nowait(Credit(id=stream.id, tokens=tokens))

    async def run(self, texts: trio.MemoryReceiveChannel[ToDetokenizer]) -> None:
        with texts:
            async for message in texts:
                self._log.append((round(trio.current_time(), 9), message))
                match message:
                    case OpenChoice(request=request, index=index, prompt=prompt):
                        if stream := self.live.get(request.id):
                            choice = stream.choices[index]
                            require(not choice.opened, f"{request.id}[{index}] was opened twice")
                            require(choice.prompt == prompt, f"{request.id}[{index}] has another's prompt")
                            choice.opened = True
                    case StepTokens():
                        for tokens in message.choices():
                            self._take(tokens)
                    case DropRequest(id=id, reason=reason):
                        if stream := self.live.pop(id, None):
                            stream.end(reason)

    def _take(self, tokens: ChoiceTokens) -> None:
        stream = self.live.get(tokens.id)
        if stream is None:
            return  # ended here already
        if tokens.reason == "error":
            del self.live[tokens.id]
            stream.end(tokens.error)
            return
        choice = stream.choices[tokens.index]
        if choice.ended:
            require(choice.stop_after is not None, f"text for a finished choice of {stream.id}")
            return  # overrun behind a stop string
        choice.take(tokens)
        delivered = len(tokens.tokens)
        if choice.stop_after is not None and len(choice.came) >= choice.stop_after:
            overrun = len(choice.came) - choice.stop_after
            delivered -= overrun
            if not choice.ended:
                self.scheduler.send_nowait(Stop(id=tokens.id, index=tokens.index, tokens_kept=choice.stop_after))
            choice.ended = True
        stream.unread += delivered
        stream.ahead -= delivered
        require(stream.ahead >= -beyond_credit(stream.admit), f"{stream.id} got tokens without credit")
        stream.arrived.unpark_all()
        if all(choice.ended for choice in stream.choices):
            del self.live[tokens.id]
            stream.end("complete")
