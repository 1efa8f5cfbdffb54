"""The vocabulary holds together: every code has its row, every message its own tag, and the link can carry them all."""

from typing import Any, get_args

import msgspec
import pytest

from triolet.protocol import fronts, messages, steps
from triolet.protocol.errors import REGISTRY, ApiError, ErrorCode
from triolet.protocol.events import ChoiceFinished, Failed, Finished, Started, StreamEvent, Token, Usage
from triolet.protocol.requests import ChatMessage, ChatPrompt, Generate, TextPrompt, TokenPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import EngineSettings, ServeSettings


def test_every_code_has_a_status_and_a_type() -> None:
    assert set(REGISTRY) == set(get_args(ErrorCode))
    for kind in REGISTRY.values():
        assert 400 <= kind.status <= 599
        assert kind.type.endswith("_error")


def test_an_error_is_the_openai_shape() -> None:
    error = ApiError("invalid_value", "n must be positive.", param="n", retry_after=3)
    assert (error.status, error.retry_after) == (400, 3)
    assert msgspec.json.decode(msgspec.json.encode(error.body())) == {
        "error": {
            "message": "n must be positive.",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_value",
        }
    }


UNIONS = {
    "to scheduler": messages.ToScheduler,
    "to detokenizer": messages.ToDetokenizer,
    "to worker": steps.ToWorker,
    "from worker": steps.FromWorker,
    "stream event": StreamEvent,
    "to front": fronts.ToFront,
    "from front": fronts.FromFront,
}


@pytest.mark.parametrize("union", UNIONS.values(), ids=UNIONS)
def test_the_members_of_a_channel_can_be_told_apart(union: Any) -> None:  # Any: a union type
    members = get_args(union)
    tags = [member.__struct_config__.tag for member in members]
    assert len(set(tags)) == len(tags)
    msgspec.msgpack.Decoder(union)  # raises where a union cannot be decoded


@pytest.mark.parametrize(
    "event",
    [
        Started(id="r", model="m", prompt_tokens=2),
        Token(id="r", index=0, text="ü", tokens=1),
        ChoiceFinished(id="r", index=0, reason="stop", stop_reason="END"),
        Finished(id="r", reason="length", usage=Usage(prompt_tokens=1, completion_tokens=2)),
        Failed(id="r", code="engine_error", message="x"),
    ],
)
def test_events_survive_the_link(event: StreamEvent) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=StreamEvent) == event


def test_requests_survive_the_link() -> None:
    request = Generate(
        id="r",
        model="m",
        prompts=(
            ChatPrompt(messages=(ChatMessage(role="user", content="Hi"),)),
            TextPrompt(text="a"),
            TokenPrompt(token_ids=(1, 2)),
        ),
        sampling=Sampling(seed=2**64 - 1, logit_bias=((1, -100.0),)),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Generate) == request


def test_settings_refuse_unknown_names() -> None:
    data = msgspec.json.encode({"engine": {"model": "m", "colour": "red"}})
    with pytest.raises(msgspec.ValidationError, match="colour"):
        msgspec.json.decode(data, type=ServeSettings)
    assert ServeSettings(engine=EngineSettings(model="m")).limits.max_choices == 128
