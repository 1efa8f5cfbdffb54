"""The site builds with every link and anchor checked, loads nothing from elsewhere, and holds files beside docs/."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def build(configuration: Path, into: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(configuration)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run([*command, "--site-dir", str(into)], capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT / "mkdocs.yml", folder)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.parametrize("link", ["gone.md", "index.md#gone", "../gone/file.json"])
def test_a_broken_link_is_refused(link: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# A page\n")
    (tmp_path / "docs/page.md").write_text(f"# Another\n\n[a link]({link})\n")
    own = "docs_dir: docs\nhooks: []\nexclude_docs: ''\nnav: [index.md, page.md]\n"
    (tmp_path / "mkdocs.yml").write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\n{own}")
    built = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert built.returncode != 0
    assert link in built.stderr


def test_pages_load_nothing_from_other_servers(site: Path) -> None:
    loads = re.compile(r"""<(?:script|img|iframe)[^>]*src=["']?https?:|<link[^>]*stylesheet[^>]*href=["']?https?:""")
    found = [page.name for page in site.rglob("*.html") if loads.search(page.read_text())]
    assert found == []
    assert (site / "search/search_index.json").is_file()  # the search needs no server of anybody else


def test_files_beside_docs_come_along(site: Path) -> None:
    """README.md is the first page; what pages link to in other folders is copied, so that the links lead somewhere."""
    first = (site / "index.html").read_text()
    assert "<h1" in first
    assert 'href="architecture.html' in first
    assert (site / "repository/models/demo/index.html").is_file()
    pages = "".join(page.read_text() for page in site.glob("*.html"))
    linked = set(re.findall(r'href="(repository/[^"#]+)', pages))
    assert linked
    assert all((site / link).is_file() for link in linked)
