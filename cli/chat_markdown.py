"""An answer's Markdown in the terminal while it grows.

A top-level block is finished when the next one has begun: it is printed once and never touched again. Only the last
block is drawn anew, so a redraw costs the length of one block and not of the answer.
"""

from typing import ClassVar, Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown, MarkdownElement
from rich.segment import Segment
from rich.syntax import Syntax

# Nothing of an answer may vanish. So HTML, such as <think>, and the definitions of links are text.
_PARSER: Final = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("reference")
_BLOCKS: Final = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["reference", "inline"])


def harmless(text: str) -> str:
    """The text without control characters: a model's text must not control the terminal."""
    return "".join(character for character in text if character in "\n\t" or character.isprintable())


def split_finished(text: str) -> tuple[str, str]:
    """The blocks that no further text can change, and the rest.

    Only whole lines count: of a "#", nobody knows whether it begins a heading.
    """
    lines = text.split("\n")
    tokens = _BLOCKS.parse("\n".join(lines[:-1]))
    starts = [token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]
    if len(starts) < 2:
        return "", text
    return "\n".join(lines[: starts[-1]]), "\n".join(lines[starts[-1] :])


class _Code(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Without rich's padding, which would be copied together with the code.
        yield Syntax(
            str(self.text).rstrip(), self.lexer_name, theme=self.theme, word_wrap=True, background_color="default"
        )


class AnswerMarkdown(Markdown):
    """rich's Markdown; links show where they lead, and a line of the text is a line on the screen, as in a poem."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "fence": _Code, "code_block": _Code}

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup = text
        self.parsed = _PARSER.parse(text)
        for token in self.parsed:
            _keep_lines(token)


def _keep_lines(token: Token) -> None:
    for child in token.children or ():
        if child.type == "softbreak":
            child.type = "hardbreak"


class Rendered:
    """An answer's text on the screen, or its last lines, as many as there is room for above the screen's last two."""

    def __init__(self, text: str, *, fitting: bool = False) -> None:
        self._markdown = AnswerMarkdown(text)
        self._fitting = fitting

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._markdown, options.update(height=None), pad=False)
        for line in lines[-max(1, console.height - 2) :] if self._fitting else lines:
            # rich fills lines up with blanks, which would be copied with the text.
            while line and not line[-1].text.strip():
                line.pop()
            yield from line[:-1]
            if line:
                yield Segment(line[-1].text.rstrip(), line[-1].style)
            yield Segment.line()
