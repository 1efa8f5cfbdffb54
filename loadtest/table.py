"""Tables, made once as rows of words, the headings first: shown on a terminal, in Markdown or in HTML."""

from collections.abc import Container, Sequence
from html import escape

from rich import markup
from rich.console import OverflowMethod
from rich.table import Table
from rich.text import Text

Rows = Sequence[Sequence[str]]


def terminal_table(
    rows: Rows,
    *,
    title: str | None = None,
    left: Container[int] = (0,),
    fold: bool = False,
    styles: Sequence[str] = (),
) -> Table:
    """`left`: the columns that are not numbers. `styles`: of each row below the headings, "" for none."""
    table = Table(title=title and Text(title), title_justify="left")
    for place, heading in enumerate(rows[0]):
        overflow: OverflowMethod = "fold" if fold else "ellipsis"
        table.add_column(markup.escape(heading), justify="left" if place in left else "right", overflow=overflow)
    for place, row in enumerate(rows[1:]):
        table.add_row(*map(Text, row), style=styles[place] if styles else None)
    return table


def terminal_facts(rows: Rows) -> Table:
    """Labels and what they say, without headings or rules."""
    grid = Table.grid(padding=(0, 2))
    for label, text in rows:
        grid.add_row(Text(label, style="dim"), Text(text))
    return grid


def markdown_table(rows: Rows) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, f"|---|{'---:|' * (len(rows[0]) - 1)}")
    return "\n".join(lines)


def html_table(rows: Rows, name: str) -> str:
    """`name`: the class that the page's style knows it by."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows[1:])
    return (
        f'<div class="scroll"><table class="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def html_facts(rows: Rows) -> str:
    cells = "".join(f"<tr><td>{escape(label)}</td><td>{escape(text)}</td></tr>" for label, text in rows)
    return f'<table class="facts">{cells}</table>'
