"""Keys take turns at the tokenizer."""

from collections.abc import Callable

import pytest

from triolet.actors.tokenizer.text_queue import BATCH, BATCH_TEXT, TextQueue
from triolet.protocol.requests import (
    ChatMessage,
    ChatPrompt,
    FunctionCall,
    Generate,
    Prompt,
    TextPrompt,
    TokenPrompt,
    ToolCall,
)

LONG = TextPrompt(text="x" * (BATCH_TEXT // 4))
CALL = ToolCall(id="1", function=FunctionCall(name="find", arguments=LONG.text))


def batches(queue: TextQueue) -> list[list[str]]:
    found: list[list[str]] = []
    while queue:
        found.append([request.id for request in queue.next_batch()])
    return found


def test_a_flood_delays_another_key_by_one_batch(generate: Callable[..., Generate]) -> None:
    queue = TextQueue()
    for number in range(300):
        queue.add(generate(f"flood{number}", prompts=(LONG,), tenant="a"))
    assert len(queue.next_batch()) == 4
    queue.add(generate("probe", prompts=(TextPrompt(text="x"),), tenant="b"))
    assert "probe" in [request.id for request in queue.next_batch()]


def test_keys_take_turns_and_each_keeps_its_order(generate: Callable[..., Generate]) -> None:
    queue = TextQueue()
    for tenant, count in (("a", 4), ("b", 2), ("c", 1)):
        for number in range(count):
            queue.add(generate(f"{tenant}{number}", tenant=tenant))
    assert batches(queue) == [["a0", "b0", "c0", "a1", "b1", "a2", "a3"]]


@pytest.mark.parametrize(
    ("prompt", "each"),
    [
        (TextPrompt(text="x"), BATCH),
        (LONG, 4),
        (TextPrompt(text="x" * 10 * BATCH_TEXT), 1),
        (ChatPrompt(messages=(ChatMessage(role="user", content=LONG.text), ChatMessage(role="assistant"))), 4),
        (ChatPrompt(messages=(ChatMessage(role="assistant", reasoning_content=LONG.text),)), 4),
        (ChatPrompt(messages=(ChatMessage(role="assistant", tool_calls=(CALL,)),)), 4),
        (ChatPrompt(messages=(ChatMessage(role="user"),), documents=({"text": LONG.text},)), 1),
        (ChatPrompt(messages=(ChatMessage(role="user"),), template_variables={"text": LONG.text}), 1),
        (TokenPrompt(token_ids=(1,) * BATCH_TEXT), BATCH),
    ],
)
def test_a_batch_is_bounded_in_requests_and_text(generate: Callable[..., Generate], prompt: Prompt, each: int) -> None:
    queue = TextQueue()
    for number in range(2 * each):
        queue.add(generate(str(number), prompts=(prompt,)))
    assert [len(batch) for batch in batches(queue)] == [each, each]
