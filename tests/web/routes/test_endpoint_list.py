"""GET /docs names every endpoint, and docs/endpoints.md does too."""

from pathlib import Path
from typing import cast

from triolet.web.routes.endpoint_list import endpoint_list
from triolet.web.routes.openapi import describe

PATHS = list(cast("dict[str, object]", describe()["paths"]))
ENDPOINTS_PAGE = Path(__file__).resolve().parents[3] / "docs/endpoints.md"


def test_every_endpoint_is_listed() -> None:
    page = endpoint_list()
    assert [path for path in PATHS if f" {path}</code>" not in page] == []
    assert "<td>Answer a conversation.</td>" in page


def test_the_documentation_names_every_endpoint() -> None:
    text = ENDPOINTS_PAGE.read_text()
    assert [path for path in PATHS if path not in text] == []
