"""Requests generated from /openapi.json against a real server: nothing is a server error, and answers are as described.

The examples are drawn anew in every run, but not where CI is set; a failure prints the request as a curl command.
"""

import json
from typing import Any, cast

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as described

from triolet.web.routes.openapi import describe

from ...conftest import Server

EXAMPLES = 12  # of each operation
SOON = 60.0  # seconds: far above what an answer takes, also on a busy machine
_general, _described = cast("Any", checks), cast("Any", described)  # Any: schemathesis leaves its classes' types open
CHECKS: list[Any] = [
    _general.not_a_server_error,
    _described.content_type_conformance,
    _described.response_schema_conformance,
    _described.status_code_conformance,
]
SCHEMA: Any = schemathesis.openapi.from_dict(json.loads(msgspec.json.encode(describe())))
OPERATIONS: list[Any] = [found.ok() for found in SCHEMA.get_all_operations()]


def label(operation: Any) -> str:
    return str(operation.label)


def shorten(body: Any) -> None:  # Any: JSON
    """What is valid stays valid, and runs for a moment only."""
    if isinstance(body, dict):
        fields = cast("dict[str, Any]", body)
        for field, most in (("max_tokens", 4), ("max_completion_tokens", 4), ("n", 2), ("best_of", 2)):
            value = fields.get(field)
            if (value is None and field == "max_tokens") or (type(value) is int and value > most):
                fields[field] = most
        shorten(fields.get("options"))
        if type(fields.get("num_predict")) is int:
            fields["num_predict"] = 4


@pytest.mark.parametrize("operation", OPERATIONS, ids=label)
def test_generated_requests(server: Server, operation: Any) -> None:  # Any: schemathesis' class for an operation
    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=cast("list[HealthCheck]", [*HealthCheck]),
    )
    def ask(case: Any) -> None:
        if operation.path.startswith(("/v1/", "/api/")):
            shorten(case.body)
        case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=SOON)

    ask()


HELLO = {"role": "user", "content": "Hi"}
FEW: dict[str, object] = {"stream_options": {"include_usage": True}, "max_tokens": 4}
# Few generated requests are right and ask for a stream.
STREAMED: dict[str, dict[str, object]] = {
    "POST /v1/chat/completions": {"messages": [HELLO], "top_logprobs": 1, "logprobs": True} | FEW,
    "POST /v1/completions": {"prompt": "Hi", "logprobs": 1} | FEW,
    "POST /v1/messages": {"messages": [HELLO], "max_tokens": 4},
    "POST /api/chat": {"messages": [HELLO], "options": {"num_predict": 4}},
    "POST /api/generate": {"prompt": "Hi", "options": {"num_predict": 4}},
}
LAST = {"POST /v1/messages": b"message_stop", "POST /api/chat": b'"done":true', "POST /api/generate": b'"done":true'}


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if one.label in STREAMED], ids=label)
def test_a_stream_is_as_described(server: Server, operation: Any) -> None:  # Any: as above
    body = STREAMED[operation.label] | {"stream": True}
    case = operation.Case(body=body, media_type="application/json")
    response = case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=SOON)
    assert response.status_code == 200
    assert LAST.get(operation.label, b"[DONE]") in response.content.rstrip().rpartition(b"\n")[2]
