"""An Ollama body as a chat or a completion, so that one place knows the model's defaults, its limits and its tools."""

from typing import Any, Literal

import msgspec

from ...protocol.errors import ApiError
from ...protocol.ollama_requests import OllamaBody, OllamaChatBody, OllamaGenerateBody, OllamaOptions
from ...protocol.openai_formats import NamedSchema, ResponseFormatJsonObject, ResponseFormatJsonSchema
from ...protocol.openai_messages import AssistantMessage, MessageBody, SystemMessage, UserMessage
from ...protocol.openai_requests import ChatBody, CompletionBody
from ...protocol.openai_tools import ToolBody
from ...protocol.requests import Generate
from ...protocol.served_models import LATEST
from ..generation.asked import Origin, ServedModel
from ..openai.conversation import without_empty_end
from ..openai.decode import refuse_unsupported
from ..openai.request import generate_from_chat, generate_from_completion, named_adapter, stop_strings
from .conversation import chat_turns

Fields = dict[str, Any]  # Any: of the fields of a chat or a completion


def generate_from_ollama_chat(body: OllamaChatBody, served: ServedModel, origin: Origin) -> Generate:
    """Raises ApiError (400, 404)."""
    turns = body.messages or []
    for index, turn in enumerate(turns):
        refuse_unsupported(turn, f"messages[{index}].")
    return _generate(body, chat_turns(turns), served, origin, body.tools)


def generate_from_ollama(body: OllamaGenerateBody, served: ServedModel, origin: Origin) -> Generate:
    """Raises ApiError (400, 404)."""
    prompt = body.prompt or ""
    if not body.raw and not body.suffix:
        system: list[MessageBody] = [SystemMessage(content=body.system)] if body.system else []
        return _generate(body, [*system, UserMessage(content=prompt)], served, origin)
    for name, given in (("system", body.system), ("think", body.think)):
        if given:
            way = "raw leaves" if body.raw else "suffix leaves"
            raise ApiError("invalid_value", f"{name} needs the chat template, which {way} out.", param=name)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    completion = CompletionBody(
        prompt=prompt,
        suffix=body.suffix,
        add_special_tokens=bool(body.suffix),
        logprobs=logprobs,
        **_fields(body, served),
    )
    return _completed(generate_from_completion(completion, served, origin), body, served)


def served_name(name: str | None, served: ServedModel, fallbacks: tuple[str, ...] = ()) -> str:
    """The name for the answer: as the client calls the served model. Raises ApiError (404) for another model's."""
    plain = plain_name(name, served)
    adapter = named_adapter(plain, served, fallbacks)
    own = served.model if adapter is None else adapter.name
    return name if name and plain in (own, f"{served.model}:{own}") else own


def plain_name(name: str | None, served: ServedModel) -> str | None:
    """Without Ollama's `:latest`."""
    return name if name is None or name == served.model else name.removesuffix(LATEST)


def _generate(
    body: OllamaBody,
    messages: list[MessageBody],
    served: ServedModel,
    origin: Origin,
    tools: list[ToolBody] | None = None,
) -> Generate:
    messages = without_empty_end(messages)
    last = messages[-1]
    chat = ChatBody(
        messages=messages,
        tools=tools,
        enable_thinking=None if body.think is None else body.think is not False,
        include_reasoning=body.think is not False,
        reasoning_effort=body.think if isinstance(body.think, str) else None,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        continue_final_message=isinstance(last, AssistantMessage) and not last.tool_calls,
        **_fields(body, served),
    )
    return _completed(generate_from_chat(chat, served, origin), body, served)


def _fields(body: OllamaBody, served: ServedModel) -> Fields:
    """Raises ApiError (400)."""
    refuse_unsupported(body)
    options = body.options or OllamaOptions()
    refuse_unsupported(options, "options.")
    if options.num_predict == 0:
        message = "options.num_predict: 0 asks for nothing; send 1 or more, or -1 for up to the context."
        raise ApiError("integer_out_of_range", message, param="options.num_predict")
    return {
        "model": plain_name(body.model, served),
        "response_format": _response_format(body.format),
        "stream": body.stream is not False,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "repetition_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "seed": options.seed,
    }


def _response_format(
    given: dict[str, Any] | Literal["", "json"] | None,  # Any: a JSON schema
) -> ResponseFormatJsonObject | ResponseFormatJsonSchema | None:
    if isinstance(given, dict):
        schema = NamedSchema(name="answer", schema=msgspec.Raw(msgspec.json.encode(given)))
        return ResponseFormatJsonSchema(json_schema=schema)
    return ResponseFormatJsonObject() if given else None


def _completed(request: Generate, body: OllamaBody, served: ServedModel) -> Generate:
    """With what a chat and a completion call or limit differently."""
    options = body.options or OllamaOptions()
    predict, source = options.num_predict, request.grammar_source
    return msgspec.structs.replace(
        request,
        max_tokens=None if predict is None or predict < 0 else predict,
        ends_at_context=True,
        grammar_source=source and msgspec.structs.replace(source, param="format"),
        stop=stop_strings(options.stop, served.limits, "options.stop"),
    )
