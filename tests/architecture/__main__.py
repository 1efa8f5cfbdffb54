"""`make architecture`: draws docs/architecture.svg from the code and counts what one chat request runs through."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from .graph import read_house
from .picture import PICTURE, draw
from .request_path import trace_one_request


def main() -> None:
    PICTURE.write_text(draw(read_house()))
    print(f"{PICTURE.relative_to(Path.cwd())} is drawn. Serving one request to see which files it runs through…")
    with TemporaryDirectory() as folder:
        executed = trace_one_request(Path(folder))
    if "--files" in sys.argv:
        print("\n".join(executed.files))
    print(
        f"One chat request runs through {len(executed.files)} files of {executed.lines:,} lines: put that in README.md."
    )


main()
