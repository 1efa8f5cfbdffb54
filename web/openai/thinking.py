"""Whether and how long the model thinks, and whether the client sees it: many parameters, one meaning."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from ...protocol.errors import ApiError
from ...protocol.openai_requests import ChatBody

T = TypeVar("T")
_ON: Final = {"enabled": True, "disabled": False, "adaptive": None, "auto": None}


class ThinkingWish(NamedTuple):
    """`variables` are those of chat templates: one reads `enable_thinking`, others `thinking` or `reasoning_effort`."""

    variables: dict[str, Any]  # Any: JSON values
    budget: int | None
    include: bool


def thinking_wish(body: ChatBody) -> ThinkingWish:
    """Raises ApiError (400) if two parameters contradict each other."""
    reasoning, thinking = body.reasoning, body.thinking
    effort = _one(
        {"reasoning_effort": body.reasoning_effort, "reasoning.effort": reasoning.effort if reasoning else None}
    )
    on = _one(
        {
            "enable_thinking": body.enable_thinking,
            "thinking.type": _ON[thinking.type] if thinking else None,
            "reasoning.enabled": reasoning.enabled if reasoning else None,
            "reasoning_effort": None if effort is None else effort != "none",
        }
    )
    budget = _one(
        {
            "thinking_token_budget": body.thinking_token_budget,
            "thinking.budget_tokens": thinking.budget_tokens if thinking else None,
            "reasoning.max_tokens": reasoning.max_tokens if reasoning else None,
        }
    )
    shown = _one(
        {
            "include_reasoning": body.include_reasoning,
            "reasoning.exclude": None if reasoning is None or reasoning.exclude is None else not reasoning.exclude,
        }
    )
    variables: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if on is not None:
        variables |= {"enable_thinking": on, "thinking": on}
    return ThinkingWish(variables, 0 if on is False else budget, shown is not False)


def _one(values: Mapping[str, T | None]) -> T | None:
    """The value that is given; raises ApiError (400) if there are two different ones."""
    given = {name: value for name, value in values.items() if value is not None}
    first = next(iter(given), None)
    for name, value in given.items():
        if first is not None and value != given[first]:
            raise ApiError("invalid_value", f"{name} contradicts {first}; send one of them.", param=name)
    return None if first is None else given[first]
