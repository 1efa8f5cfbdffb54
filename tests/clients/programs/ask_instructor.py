"""instructor: an object from a tool's arguments and from a JSON schema, whole and in parts while it is written."""

import json
import sys

import instructor
import openai
from pydantic import BaseModel


class Sum(BaseModel):
    """A sum."""

    result: int


MODES = (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA)
QUESTION = {"role": "user", "content": "What is 3 plus 4?"}
OPTIONS = {"model": "triolet-demo", "messages": [QUESTION], "response_model": Sum, "temperature": 0}


def ask(mode: instructor.Mode) -> list[bool]:
    client = instructor.from_openai(openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none"), mode=mode)
    *_, last = client.create_partial(**OPTIONS)
    return [isinstance(client.create(max_retries=0, **OPTIONS), Sum), isinstance(last.result, int)]


print(json.dumps({mode.name: ask(mode) for mode in MODES}))
