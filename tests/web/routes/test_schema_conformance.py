"""Requests generated from /openapi.json against a real server: nothing is a server error, and answers are as described.

The examples are drawn anew in every run; a failure prints the request as a curl command.
"""

import json
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from triolet.web.routes.openapi import describe

EXAMPLES = 12  # of each operation
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
OPERATIONS = [
    found.ok()
    for found in schemathesis.openapi.from_dict(json.loads(msgspec.json.encode(describe()))).get_all_operations()
]


def shorten(body: object) -> None:
    """What is valid stays valid, and runs for a moment only."""
    if isinstance(body, dict):
        for field, most in (("max_tokens", 4), ("max_completion_tokens", 4), ("n", 2), ("best_of", 2)):
            value = body.get(field)
            if (value is None and field == "max_tokens") or (type(value) is int and value > most):
                body[field] = most


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_generated_requests(server, operation: Any) -> None:  # Any: schemathesis' class for an operation
    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        if operation.path.startswith("/v1/"):
            shorten(case.body)
        case.call_and_validate(base_url=server.url, checks=CHECKS)

    ask()
