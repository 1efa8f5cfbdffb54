"""How long the chat page blocks while long answers stream, by hand: `python -m tests.web.page.long_tasks`.

Times depend on the machine; what the tests assert is the counted work (test_prose_stream.py).
"""

from collections.abc import Callable

from playwright.sync_api import expect

from ..chromium import browsing, fresh_page, serving
from .scripted import scripted
from .visitor import ask, visit, wait_for_answers

OBSERVE = """
window.tasks = [];
new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({ type: "longtask", buffered: true });
"""
LINES = "".join(f"    value_{number} = compute({number})  # line {number}\n" for number in range(3000))
ANSWERS = {
    "3,000 lines of code": f"```python\n{LINES}```\n",
    "a list of 1,000 items": "".join(f"- item **{number}** with `code` and some words\n" for number in range(1000)),
    "a table of 1,000 rows": "| a | b |\n|---|---|\n" + "".join(f"| {number} | text |\n" for number in range(1000)),
    "a paragraph of 60,000 characters": "some words " * 5455,
    "a heading with 40,000 spaces": "# a" + " " * 40_000 + "b",
}


def always(text: str) -> Callable[[str], str]:
    return lambda question: text


def main() -> None:
    print("| answer, in frames of 12 characters | tasks over 50 ms | longest, ms |\n|---|---:|---:|")
    with serving() as server, browsing() as browser:
        for name, text in ANSWERS.items():
            with fresh_page(browser) as page:
                page.add_init_script(OBSERVE)
                page.route_web_socket("**/v1/stream", scripted(always(text)))
                visit(page, server.url)
                page.evaluate("() => (window.tasks.length = 0)")
                ask(page, "Go")
                wait_for_answers(page, 1)
                expect(page.locator(".prose > *")).not_to_have_count(0)
                page.wait_for_timeout(1000)  # the last colours
                tasks: list[float] = page.evaluate("window.tasks")
                print(f"| {name} | {len(tasks)} | {max(tasks, default=0):.0f} |", flush=True)


if __name__ == "__main__":
    main()
