"""The libraries of the chat page are those that `web/page/vendor/README.md` lists, and together they stay small."""

import re
from hashlib import sha256

from triolet.web.routes.page_files import PAGE

VENDOR = PAGE / "vendor"


def test_the_list_of_libraries_is_true() -> None:
    text = (VENDOR / "README.md").read_text()
    listed = dict(re.findall(r"^\| (\S+/\S+) \| \d+ \| ([0-9a-f]{64}) \|$", text, re.MULTILINE))
    files = [path for path in VENDOR.rglob("*") if path.suffix in (".js", ".woff2")]
    assert listed == {str(path.relative_to(VENDOR)): sha256(path.read_bytes()).hexdigest() for path in files}
    assert {path.parent for path in files} == {path.parent for path in VENDOR.rglob("LICENSE")}
    versions = set(re.findall(r"=(\d+\.\d+\.\d+)", (VENDOR / "renew.sh").read_text()))
    assert versions >= set(re.findall(r"\| (\d+\.\d+\.\d+) \|", text)) != set()


def test_the_libraries_weigh_about_600_kilobytes() -> None:
    assert sum(path.stat().st_size for path in VENDOR.rglob("*") if path.is_file()) < 620_000
