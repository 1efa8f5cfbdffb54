"""Streaming: the same nodes however the text arrives, nothing lost, and work that is linear in the text's length."""

import random
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from .render_page import RenderPage, render_page

PIECES = [
    *("a ", "word ", "é", "😀", "end.\n", "\n", "\n\n", "  ", "    ", "\t", "\r\n", "\\", "|", "&amp;"),
    *("**", "*", "_", "`", "``", "```", "```py\n", "   ```js\n   x\n   ```\n", "~~~", '{"a": 1}\n'),
    *("- ", "* ", "1. ", "2) ", "\n- item\n", "> ", "# ", "## ", "---", "===", "[ ] "),
    *("| a | b |\n|---|---|\n", "| 1 | 2 |\n", "$", "$$", "\\(", "\\)", "\\[", "\\]", "<think>", "</think>"),
    *("[x](http://a.b)", "![i](http://a/b.png)", "https://x.org/a ", "[r]: http://a.b\n", "[r]"),
]
BOTH_WAYS = """async (cases) => {
  const { createRenderer } = await import("/static/render.js");
  return cases.map(([text, ends]) => {
    const [whole, grown] = [document.createElement("div"), document.createElement("div")];
    createRenderer(whole).update(text, true);
    const renderer = createRenderer(grown);
    for (const end of ends) renderer.update(text.slice(0, end), false);
    renderer.update(text, true);
    return [whole.innerHTML, grown.innerHTML, whole.textContent];
  });
}"""


@pytest.fixture(scope="module")
def prose(browser: Browser) -> Iterator[RenderPage]:
    with render_page(browser) as opened:
        opened.show("$x$")
        opened.page.locator("math").wait_for()  # formulas do not change any more once Temml is there
        yield opened


def test_a_text_is_rendered_alike_whole_and_in_pieces(prose: RenderPage) -> None:
    cases: list[tuple[str, list[int]]] = []
    for seed in range(600):
        source = random.Random(seed)
        text = "".join(source.choices(PIECES, k=source.randrange(2, 60)))
        ends = [*range(1, len(text))] if seed % 2 else sorted(source.sample(range(len(text)), min(5, len(text))))
        cases.append((text, ends))
    for (text, _), (whole, grown, _) in zip(cases, prose.page.evaluate(BOTH_WAYS, cases), strict=True):
        assert grown == whole, text


def test_no_word_is_lost(prose: RenderPage) -> None:
    def words(text: str) -> list[str]:
        return re.findall(r"w\d+", text)

    marks = ["**", "`", "\n", "\n\n", "- ", "> ", "1. ", "# ", "|", "$", "~~~\n", "    ", "<think>"]
    cases: list[tuple[str, list[int]]] = []
    for seed in range(200):
        source = random.Random(seed)
        parts = [source.choice(marks) + f" w{number} " for number in range(40)]
        cases.append(("".join(parts), []))
    for (text, _), (_, _, shown) in zip(cases, prose.page.evaluate(BOTH_WAYS, cases), strict=True):
        assert words(shown) == words(text), text


def test_nodes_that_stand_are_kept(prose: RenderPage) -> None:
    prose.show("one\n\n- a\n- b **tw", done=False)
    kept = prose.page.evaluate(
        """() => {
          const before = [...document.querySelectorAll("p, ul, li")];
          window.renderer.update("one\\n\\n- a\\n- b **two** three\\n- c", false);
          return before.map((node) => node.isConnected);
        }"""
    )
    assert kept == [True] * 6


LONG = 40_000  # characters: some windows of the parser
HOSTILE = {
    "code": "```python\n" + "x = 1\n" * (LONG // 6),
    "open code in a list": "- ```\n" + "  x = 1\n" * (LONG // 8),
    "paragraph": "word " * (LONG // 5),
    "one word": "a" * LONG,
    "lines": "a\n" * (LONG // 2),
    "empty lines": "\n" * LONG,
    "list": "- item\n" * (LONG // 7),
    "nested list": "".join("  " * (line % 20) + "- item\n" for line in range(LONG // 30)),
    "table": "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * (LONG // 10),
    "short fences": "```\n```\n" * (LONG // 8),
    "quotes": "> a\n" * (LONG // 4),
    "deep quotes": ">" * LONG,
    "heading of spaces": "# a" + " " * LONG + "b",
    "emphasis": "*a **a " * (LONG // 7),
    "brackets": "[" * LONG,
    "links": "[a](" * (LONG // 4),
    "backticks": "".join("`" * (number % 60 + 1) + " " for number in range(LONG // 32)),
    "dollars": "$a " * (LONG // 3),
    "open formulas": "\\[\n" * (LONG // 3),
    "entities": "&#" * (LONG // 2),
    "closed thoughts": "a</think>" * (LONG // 9),
    "definitions": "".join(f"[r{number}]: http://a.b\n" for number in range(LONG // 20)),
    "spaces": " " * LONG,
}
# In one answer that grows by 40 characters, as a fast stream does; what the renderer parsed and appended in all.
GROW = """async ([text, step]) => {
  const { createRenderer } = await import("/static/render.js");
  const element = document.createElement("div");
  const renderer = createRenderer(element);
  for (let end = step; end < text.length + step; end += step) renderer.append(text.slice(end - step, end));
  renderer.update(text, true);
  return [renderer.work, element.textContent.length];
}"""


@pytest.mark.parametrize("name", HOSTILE)
def test_work_is_linear_in_the_length(prose: RenderPage, name: str) -> None:
    text = HOSTILE[name]
    half, _ = prose.page.evaluate(GROW, [text[: len(text) // 2], 40])
    work, shown = prose.page.evaluate(GROW, [text, 40])
    updates = len(text) // 40
    assert work <= 20 * len(text) + 2200 * updates  # what stream.py promises: a short tail each time, or 1/16 more
    assert work <= 2.6 * half + 50_000  # twice the text, twice the work
    assert shown > 0 or name in ("definitions", "empty lines", "spaces")


def test_streaming_code_costs_its_own_length(prose: RenderPage) -> None:
    code = "".join(f"    value_{number} = compute({number})  # line {number}\n" for number in range(3000))
    work, _ = prose.page.evaluate(GROW, [f"```python\n{code}", 8])
    assert work < 1.1 * len(code)
