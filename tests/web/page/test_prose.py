"""What the chat page makes of Markdown: which nodes, and that a model's text never becomes markup."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from .render_page import RenderPage, render_page


@pytest.fixture(scope="module")
def prose(browser: Browser) -> Iterator[RenderPage]:
    with render_page(browser) as opened:
        yield opened


LINK = 'target="_blank" rel="noopener noreferrer"'
P = "<p>"


@pytest.mark.parametrize(
    ("source", "html"),
    [
        ("<img src=x onerror=alert(1)>", f"{P}&lt;img src=x onerror=alert(1)&gt;</p>"),
        ("[x](javascript:alert(1))", f"{P}[x](javascript:alert(1))</p>"),
        ("[x](/v1/models)", f"{P}[x](/v1/models)</p>"),
        ("[x](https://a.org/b 'c')", f'{P}<a href="https://a.org/b" {LINK} title="c">x</a></p>'),
        ("![x](https://a.org/b.png)", f'{P}<a href="https://a.org/b.png" {LINK}>x</a></p>'),
        ("at https://a.org, or main.py", f'{P}at <a href="https://a.org" {LINK}>https://a.org</a>, or main.py</p>'),
        ("see [x]\n\n[x]: https://a.org", f'{P}see <a href="https://a.org" {LINK}>x</a></p>'),
        ("***both*** ~~gone~~", f"{P}<em><strong>both</strong></em> <s>gone</s></p>"),
        ("`a < b` snake_case_name 2 * 3 * 4", f"{P}<code>a &lt; b</code> snake_case_name 2 * 3 * 4</p>"),
        ("&copy; &amp; \\*\nline", f"{P}© &amp; *<br>line</p>"),
        ("# One\n### Three", '<h2 class="level-1">One</h2><h3 class="level-3">Three</h3>'),
        ("One\n===\nTwo\n---", '<h2 class="level-1">One</h2><h3 class="level-2">Two</h3>'),
        ("- a\n- b\n\n3. c", '<ul><li><p>a</p></li><li><p>b</p></li></ul><ol start="3"><li><p>c</p></li></ol>'),
        ("- a\n\n- b", '<ul class="loose"><li><p>a</p></li><li><p>b</p></li></ul>'),
        ("> a", "<blockquote><p>a</p></blockquote>"),
        ("$5 and $6", f"{P}$5 and $6</p>"),
    ],
)
def test_markdown_becomes_nodes_and_never_markup(prose: RenderPage, source: str, html: str) -> None:
    assert prose.html(source) == html


def test_tables_have_alignment_and_escaped_bars(prose: RenderPage) -> None:
    html = prose.html("| a | b\\|c |\n|:-:|--:|\n| 1 | 2 |")
    assert '<th scope="col" class="center">a</th><th scope="col" class="right">b|c</th>' in html
    assert '<td class="center">1</td><td class="right">2</td>' in html


def test_task_lists_have_boxes_that_say_their_state(prose: RenderPage) -> None:
    prose.show("- [ ] open\n- [x] shut")
    expect(prose.page.get_by_role("checkbox", name="To do")).not_to_be_checked()
    expect(prose.page.get_by_role("checkbox", name="Done")).to_be_checked()
    expect(prose.page.locator("li")).to_have_text(["open", "shut"])


@pytest.mark.parametrize("source", ["a $x^2$ b", "a \\(x^2\\) b", "$$x^2$$", "\\[\nx^2\n\\]", "- \\[x^2\\]"])
def test_formulas_become_mathml(prose: RenderPage, source: str) -> None:
    prose.show(source)
    expect(prose.page.locator("math msup")).to_have_count(1)
    expect(prose.page.locator(".tex")).to_have_count(0)
    assert (prose.page.locator(".formula").count() == 1) == ("a " not in source)


def test_a_wrong_or_dangerous_formula_is_shown_as_written(prose: RenderPage) -> None:
    prose.show("$x$ $\\frac{1$ $\\href{javascript:alert(1)}{y}$ $\\def\\a{\\a\\a}\\a$")
    expect(prose.page.locator("math").first).to_be_visible()
    expect(prose.page.locator(".tex").first).to_have_text("\\frac{1")
    expect(prose.page.locator("#out a")).to_have_count(0)


def test_code_has_its_language_its_colours_and_its_text(prose: RenderPage) -> None:
    prose.show('Look:\n\n   ```python\n   def f(x):\n       return "a"  # c\n   ```\n')
    expect(prose.page.locator(".code-head span")).to_have_text("python")
    expect(prose.page.locator(".c-keyword")).to_have_text(["def", "return"])
    expect(prose.page.locator(".c-string")).to_have_text('"a"')
    expect(prose.page.locator(".c-comment")).to_have_text("# c")
    assert prose.page.locator("pre code").text_content() == 'def f(x):\n    return "a"  # c'


def test_every_language_has_its_colours(prose: RenderPage) -> None:
    languages: list[str] = prose.page.evaluate(
        "async () => { const { LANGUAGES } = await import('/static/prose/languages.js'); return LANGUAGES; }"
    )
    without = prose.page.evaluate(
        """async (languages) => {
          const { modeOf } = await import("/static/prose/languages.js");
          const modes = await Promise.all(languages.map((language) => modeOf(language)));
          return languages.filter((_, index) => typeof modes[index]?.token !== "function");
        }""",
        languages,
    )
    assert len(languages) > 80
    assert without == []


def test_an_unknown_language_stays_plain(prose: RenderPage) -> None:
    assert prose.html("```brainwave\na < b\n```").endswith(
        '<code><span class="piece">a &lt; b</span></code></pre></div>'
    )


def test_bare_json_is_code(prose: RenderPage) -> None:
    prose.show('{\n"a": 1\n}\n\nDone.')
    expect(prose.page.locator(".code-head span")).to_have_text("json")
    assert prose.page.locator("pre code").text_content() == '{\n"a": 1\n}'
    expect(prose.page.locator("#out > p")).to_have_text("Done.")


@pytest.mark.parametrize("think", ["<think>hm</think>", "\n<think>\nhm\n</think>\n\n", "hm\n</think>\n"])
def test_a_thought_is_folded(prose: RenderPage, think: str) -> None:
    text = f"{think}Hello"
    prose.show(*(text[:end] for end in range(1, len(text) + 1)))
    expect(prose.page.locator("summary")).to_have_text("Thought")
    expect(prose.page.get_by_text("hm")).to_be_hidden()
    expect(prose.page.get_by_text("Hello")).to_be_visible()
    prose.page.locator("summary").click()
    expect(prose.page.get_by_text("hm")).to_be_visible()


def test_an_open_thought_says_so_and_an_empty_one_is_not_shown(prose: RenderPage) -> None:
    prose.show("<think>hm", done=False)
    expect(prose.page.locator("summary")).to_have_text("Thinking…")
    prose.show("<think>\n\n</think>\n\nHello")
    expect(prose.page.locator("summary")).to_be_hidden()


def test_tags_of_thoughts_in_an_explanation_are_text(prose: RenderPage) -> None:
    prose.show("Write `<think>` first:\n\n```\n<think>\nhm\n</think>\n```")
    expect(prose.page.locator("details")).to_have_count(0)


def test_each_block_follows_the_direction_of_its_text(prose: RenderPage) -> None:
    prose.show("مرحبا بالعالم\n\nHello\n\n- שלום\n\n```\nx = 1\n```")
    direction = "(node) => getComputedStyle(node).direction"
    directions = [node.evaluate(direction) for node in prose.page.locator("#out > *").all()]
    assert directions == ["rtl", "ltr", "rtl", "ltr"]


def test_headings_are_an_outline_without_gaps(prose: RenderPage) -> None:
    text = "".join(f"{'#' * level} {level}\n\ntext\n\n" for level in (3, 3, 5, 4, 1, 2))
    prose.show(*(text[:end] for end in range(1, len(text) + 1)))
    tags = prose.page.locator("#out :is(h1, h2, h3, h4, h5, h6)").evaluate_all(
        "(nodes) => nodes.map((node) => node.tagName)"
    )
    assert tags == ["H2", "H2", "H3", "H3", "H2", "H3"]


def test_too_deep_nesting_is_shown_as_written(prose: RenderPage) -> None:
    source = "> " * 300 + "deep"
    prose.show(source)
    expect(prose.page.locator("#out > p")).to_have_text(source)
