"""The response that a request begins with: its id, and the parameters of its request."""

from typing import Any

import msgspec
from msgspec import Raw

from ...protocol.requests import Generate
from ...protocol.response_answers import RESPONSE_PREFIX, ReasoningEcho, ResponseObject, TextEcho
from ...protocol.response_requests import CreateResponse, PlainFormat


def begun_response(body: CreateResponse, request: Generate, created: int, *, store: bool) -> ResponseObject:
    text, reasoning = body.text, body.reasoning
    return ResponseObject(
        id=RESPONSE_PREFIX + request.id,
        created_at=created,
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        model=request.served_as,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=ReasoningEcho(effort=reasoning.effort, summary=reasoning.summary) if reasoning else ReasoningEcho(),
        safety_identifier=body.safety_identifier,
        store=store,
        temperature=request.sampling.temperature,
        text=TextEcho(
            format=Raw(msgspec.json.encode((text and text.format) or PlainFormat())),
            verbosity=(text and text.verbosity) or "medium",
        ),
        tool_choice=_plain(body.tool_choice or "auto"),
        tools=[_plain(tool) for tool in body.tools or ()],
        top_logprobs=body.top_logprobs or 0,
        top_p=request.sampling.top_p if body.top_p is None else body.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
        metadata=body.metadata or {},
    )


def _plain(value: object) -> Any:  # Any: JSON values
    return msgspec.to_builtins(value)
