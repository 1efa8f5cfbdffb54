"""What `mkdocs build` does beyond docs/: README.md is the first page, and files elsewhere that pages link to come too.

So one text and one link serve the checkout and the site. A link to a file that does not exist stays as it is, and
`--strict` refuses it.
"""

import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
COPIES = "repository"  # the site's folder for files that are not in docs/

_LINK = re.compile(r"(?<=\]\()(?!https?://|#|mailto:)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the first page and the copies, and mends the links to them."""
    waiting = [ROOT / "README.md", *(ROOT / "docs" / page.src_uri for page in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        source = waiting.pop()
        if source.suffix == ".md":
            text, linked = _with_links_mended(source)
            if (plain := files.get_file_from_path(_uri(source))) is not None:
                files.remove(plain)
            files.append(File.generated(config, _uri(source), content=text))
            copies = {path for path in linked - seen if _uri(path).startswith(f"{COPIES}/")}
            seen |= copies
            waiting += copies
        else:
            files.append(File.generated(config, _uri(source), abs_src_path=str(source)))
    return files


def _with_links_mended(source: Path) -> tuple[str, set[Path]]:
    """A page's text with the links that it needs on the site, and the files that they lead to."""
    linked: set[Path] = set()
    up = "../" * (len(PurePosixPath(_uri(source)).parts) - 1)

    def mended(link: re.Match[str]) -> str:
        target = (source.parent / link[1]).resolve()
        if not target.is_file() or not target.is_relative_to(ROOT):
            return link[1]
        linked.add(target)
        return up + _uri(target)

    return _LINK.sub(mended, source.read_text()), linked


def _uri(path: Path) -> str:
    """Where a file of the repository is among the site's sources."""
    if path == ROOT / "README.md":
        return "index.md"
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    return f"{COPIES}/{path.relative_to(ROOT).as_posix().lstrip('.')}"  # mkdocs leaves out hidden folders
