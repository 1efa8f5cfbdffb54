import io

import pytest
from rich.console import Console

from triolet.cli.chat_display import GrowingAnswer
from triolet.cli.chat_markdown import AnswerMarkdown, harmless, split_finished

ANSWER = """# Colours

Some text
on two lines.

- red
- blue

  still blue

```python
x = 1

# not a heading
```

| a | b |
|---|---|
| 1 | 2 |

<think>
kept
</think>

[link]: http://127.0.0.1/x

[shown](http://127.0.0.1/y) at last
"""


def _rendered(text: str) -> list[str]:
    console = Console(file=io.StringIO(), width=60)
    console.print(AnswerMarkdown(text))
    assert isinstance(console.file, io.StringIO)
    return [line.strip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_a_model_s_text_cannot_command_the_terminal() -> None:
    assert harmless("a\x1b[2Jb\x07\r\nc\td — é\u202e") == "a[2Jb\nc\td — é"


def test_nothing_of_an_answer_vanishes() -> None:
    shown = "\n".join(_rendered(ANSWER))
    for part in (
        "Some text\non two lines.",
        "<think>\nkept\n</think>",
        "[link]: http://127.0.0.1/x",
        "http://127.0.0.1/y",
    ):
        assert part in shown


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_an_answer_in_pieces_is_split_where_the_whole_one_is(step: int) -> None:
    """Whatever the pieces are, the blocks printed one by one are those of the whole text."""
    blocks: list[str] = []
    rest = ""
    for at in range(0, len(ANSWER), step):
        finished, rest = split_finished(rest + ANSWER[at : at + step])
        blocks.append(finished)
    assert "".join([*blocks, rest]).replace("\n", "") == ANSWER.replace("\n", "")
    assert [line for block in [*blocks, rest] for line in _rendered(block)] == _rendered(ANSWER)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("one\n\ntwo\n", "two\n"),
        ("one\n\n#", "one\n\n#"),  # may become "#hash", a part of nothing new
        ("```\na\n\nb\n", "```\na\n\nb\n"),
        ("one\n\n```\na\n", "```\na\n"),
    ],
)
def test_only_the_last_block_stays_open(text: str, rest: str) -> None:
    assert split_finished(text)[1] == rest


def test_a_finished_block_is_printed_once() -> None:
    console = Console(file=io.StringIO(), width=60, height=20, force_terminal=True)
    answer = GrowingAnswer(console)
    for number in range(50):
        answer.add(f"paragraph {number}.\n\n")
        answer.draw()
    answer.close()
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue()
    assert "paragraph 0." in written
    # Drawn while it was the last one, printed once when it was finished; never again.
    assert all(written.count(f"paragraph {number}.") <= 2 for number in range(50))


def test_a_block_longer_than_the_screen_shows_its_end() -> None:
    console = Console(file=io.StringIO(), width=60, height=10, force_terminal=True)
    answer = GrowingAnswer(console)
    answer.add("\n".join(["```", *(f"line {number};" for number in range(40)), ""]))
    answer.draw()
    assert isinstance(console.file, io.StringIO)
    drawn = console.file.getvalue()
    assert "line 39;" in drawn
    assert "line 20;" not in drawn
    answer.close()
    assert "line 20;" in console.file.getvalue()
