"""The same lives through the real gateway, detokenizer and outboxes, with a tokenizer of one character per token.

Here the oracle is the text: what decoding all expected tokens at once and cutting at the stop string gives. Each stream
must be Started, text, one ChoiceFinished per choice and one terminal event, and its usage must count what it says. Each
terminal event has one usage record, which says the same.
"""

import random
from collections.abc import Iterator
from functools import partial

import msgspec
import trio
from tokenizers import AddedToken, Tokenizer, decoders, models

from triolet.actors.detokenizer.detokenizer import Detokenizer
from triolet.actors.gateway.gateway import Gateway
from triolet.actors.gateway.history import History
from triolet.actors.gateway.outbox import Outbox
from triolet.actors.scheduler.scheduler import run_scheduler
from triolet.actors.scheduler.state import SchedulerState
from triolet.actors.tokenizer.text_tokenizer import TextTokenizer
from triolet.protocol.events import ChoiceFinished, Failed, Finished, Started, StreamEvent, Token
from triolet.protocol.messages import Admit, ToDetokenizer, ToScheduler, ToTokenizer
from triolet.protocol.settings import LimitSettings
from triolet.protocol.steps import WorkerOrder

from ..usage.audit import disagreement
from .device import EOS, VOCABULARY, beyond_credit, expected_choices
from .front import SimulationError, require
from .scenario import Log, Scenario
from .worker import Supervised
from .world import PATIENCE, Outcome, check_every_plan, check_nothing_left, run_life


def simulate_house(seed: int) -> Outcome:
    """Live one life behind the real front; raises what goes wrong."""
    return run_life(seed, _live)


def letter(token: int) -> str:
    return chr(ord("@") + token)


def one_character_tokenizer() -> TextTokenizer:
    vocabulary = {"<|end|>": EOS} | {letter(token): token for token in range(EOS + 1, VOCABULARY)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])  # pyright: ignore[reportUnknownMemberType]  # tokenizers leaves it untyped
    return TextTokenizer(tokenizer, None)


def expected_text(admit: Admit, choice: Iterator[int]) -> tuple[str, str, int]:
    """Text, reason and number of tokens of a choice."""
    tokens, text = 0, ""
    for token in choice:
        if token in admit.stop_token_ids:
            return text, "stop", tokens + 1
        tokens += 1
        text += "" if token == EOS else letter(token)
        ends = [text.index(stop) for stop in admit.request.stop if stop in text]
        if ends:
            return text[: min(ends)], "stop", tokens
    return text, "length", tokens


class Client:
    """A request, its client's habit and what came out of its outbox."""

    def __init__(self, admit: Admit, habit: str, rng: random.Random) -> None:
        stop = tuple(letter(rng.randrange(1, VOCABULARY)) * n for n in (1, 2) if rng.random() < 0.15)
        sampling = msgspec.structs.replace(admit.request.sampling, min_tokens=0)
        request = msgspec.structs.replace(admit.request, stop=stop, sampling=sampling)
        self.admit = msgspec.structs.replace(admit, request=request)
        self.id = request.id
        self.habit = habit
        self.events: list[StreamEvent] = []

    def check(self) -> str:
        """The whole stream, once it has ended; returns how."""
        *events, last = self.events
        require(isinstance(last, Finished | Failed), f"{self.id} has no terminal event at its end")
        require(not any(isinstance(event, Finished | Failed) for event in events), f"{self.id} ends twice")
        finished = {event.index: event for event in events if isinstance(event, ChoiceFinished)}
        require(len(finished) == sum(isinstance(event, ChoiceFinished) for event in events), "a choice ends twice")
        if events:
            require(isinstance(events[0], Started), f"{self.id} begins with {events[0]}")
        complete = isinstance(last, Finished) and last.reason in ("stop", "length")
        tokens = 0
        for index, choice in enumerate(expected_choices(self.admit)):
            text = "".join(event.text for event in events if isinstance(event, Token) and event.index == index)
            whole, reason, count = expected_text(self.admit, choice)
            # One that is ended from outside says what it held back: that might have become a stop string.
            wholes = [whole] if complete else [whole, *(whole + stop for stop in self.admit.request.stop)]
            require(any(one.startswith(text) for one in wholes), f"wrong text in {self.id}[{index}]")
            tokens += count
            if complete:
                require(text == whole, f"{self.id}[{index}] is not whole")
                require(finished[index].reason == reason, f"{self.id}[{index}] ended with {finished[index].reason}")
        if isinstance(last, Failed):
            return last.code
        assert isinstance(last, Finished)
        require(not complete or last.usage.completion_tokens == tokens, f"{self.id} counts {last.usage}, not {tokens}")
        return "complete" if complete else last.reason

    async def run(self, gateway: Gateway, rng: random.Random, outbox_tokens: int) -> None:
        await trio.sleep(rng.uniform(0, 4))
        outbox = gateway.submit(self.admit.request)
        read = partial(self._read, outbox, gateway, rng, outbox_tokens)
        match self.habit:
            case "leaves":
                with trio.move_on_after(rng.expovariate(1.5)):
                    await read(pause=0.01)
                gateway.cancel(self.id)
            case "stalls":
                await read(pause=0.05, batches=rng.randrange(3))
                await trio.sleep(600)  # long after every timeout
            case _:
                await read(pause=0.5 if self.habit == "slow" else 0.005)
                return
        await read(pause=0)  # what is left behind, for the record

    async def _read(
        self,
        outbox: Outbox,
        gateway: Gateway,
        rng: random.Random,
        outbox_tokens: int,
        *,
        pause: float,
        batches: int = 10**9,
    ) -> None:
        for _ in range(batches):
            if self.habit == "grants":
                gateway.grant(self.id, rng.randrange(1, 20))
            require(
                outbox.tokens_waiting <= outbox_tokens + beyond_credit(self.admit),
                f"{self.id} holds {outbox.tokens_waiting} tokens",
            )
            try:
                self.events.extend(await outbox.drain())
            except trio.EndOfChannel:
                return
            await trio.sleep(rng.uniform(0, 2 * pause))


async def _live(scenario: Scenario, state: SchedulerState, rng: random.Random, log: Log) -> list[str]:
    to_scheduler, inbox = trio.open_memory_channel[ToScheduler](float("inf"))
    to_worker, steps = trio.open_memory_channel[WorkerOrder](float("inf"))
    to_detokenizer, texts = trio.open_memory_channel[ToDetokenizer](1)
    to_tokenizer, requests = trio.open_memory_channel[ToTokenizer](1000)
    tokenizer = one_character_tokenizer()
    limits = LimitSettings(outbox_tokens=scenario.outbox_tokens)
    ended: list[History] = []
    gateway = Gateway(limits, tokenizer=to_tokenizer, scheduler=to_scheduler.clone(), on_end=[ended.append])
    detokenizer = Detokenizer(tokenizer=tokenizer, gateway=gateway, scheduler=to_scheduler.clone())
    clients = [Client(admit, habit, rng) for admit, habit in scenario.requests]
    admits = {client.id: client.admit for client in clients}
    supervised = Supervised(scenario, rng, log)
    check_every_plan(state, scenario)

    async def admit_all() -> None:
        """In place of tokenizer and admission: what they know is in the scenario."""
        with requests:
            async for request in requests:
                await trio.sleep(rng.uniform(0, 0.01))
                if gateway.is_live(request.id):
                    gateway.admitted(request.id, sum(map(len, admits[request.id].prompts)))
                    to_scheduler.send_nowait(msgspec.structs.replace(admits[request.id], request=request))

    async def detokenize() -> None:
        with texts:
            async for message in texts:
                log.append((round(trio.current_time(), 9), message))
                detokenizer.handle([message])

    async with trio.open_nursery() as actors:
        await actors.start(partial(run_scheduler, inbox, to_worker, to_detokenizer, state=state))
        actors.start_soon(supervised.run, steps, to_scheduler.clone())
        actors.start_soon(detokenize)
        actors.start_soon(admit_all)
        with trio.move_on_after(PATIENCE) as patience:
            async with trio.open_nursery() as house:
                for client in clients:
                    house.start_soon(client.run, gateway, rng, scenario.outbox_tokens)
        if patience.cancelled_caught:
            raise SimulationError(
                f"no end after {PATIENCE} s: {[state.standing(id, trio.current_time()) for id in admits]}"
            )
        await trio.sleep(scenario.stall_timeout + 30)
        require(gateway.live_requests == 0, "the gateway still holds requests")
        require(not detokenizer._requests, "the detokenizer still holds requests")
        check_nothing_left(state, supervised)
        actors.cancel_scope.cancel()
    ends = [client.check() for client in clients]
    require((found := disagreement(ended, [client.events[-1] for client in clients])) is None, f"usage: {found}")
    return ends
