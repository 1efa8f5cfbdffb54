"""Blocks are found with their outputs and exemptions, and a wrong output is seen."""

import pytest

from .blocks import Block, agrees, blocks_of, commands_of

PAGE = """Text.

```sh
curl a
```

```json
{"a": 1}
```

<!-- not run: it needs a GPU -->
```console
$ one \\
    --more
out
$ two
```

```toml
port = 1
```
"""


def test_blocks_have_their_outputs_and_exemptions() -> None:
    assert blocks_of(PAGE) == [
        Block(3, "sh", "curl a\n", '{"a": 1}\n'),
        Block(12, "console", "$ one \\\n    --more\nout\n$ two\n", not_run="it needs a GPU"),
        Block(19, "toml", "port = 1\n"),
    ]


def test_text_between_keeps_a_block_from_being_an_output() -> None:
    page = "```sh\na\n```\n\nIt reads:\n\n```json\n{}\n```\n"
    assert [block.output for block in blocks_of(page)] == [None, None]


def test_commands_of_a_console_have_their_outputs() -> None:
    assert list(commands_of("$ one \\\n    --more\nout\n$ two\n")) == [("one \\\n    --more", "out\n"), ("two", "")]


@pytest.mark.parametrize(
    ("stated", "printed"),
    [
        ("ready at …\n", "ready at http://127.0.0.1:8000/\n"),
        ("one\n…\nthree", "one\ntwo\nthree\n"),
        ("a   b", "a\nb\n"),
        ('{"id": "…", "n": [1, {"b": null}]}', '{"n": [1, {"b": null, "c": 2}], "id": "x7"}'),
        ('{"message": "port … is taken"}', '{"message": "port 80 is taken"}'),
    ],
)
def test_what_is_printed_agrees(stated: str, printed: str) -> None:
    assert agrees(stated, printed)


@pytest.mark.parametrize(
    ("stated", "printed"),
    [
        ("ready", "not ready"),
        ("one\n…\nthree", "one\nthree\nfour"),
        ('{"n": 1}', '{"n": 2}'),
        ('{"n": 1}', "{}"),
        ('{"n": 1}', '{"n": true}'),
        ('{"n": [1]}', '{"n": [1, 2]}'),
        ('{"a": 1}', "nothing"),
    ],
)
def test_what_is_printed_differs(stated: str, printed: str) -> None:
    assert not agrees(stated, printed)
