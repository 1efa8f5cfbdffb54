"""What Triton compiled in a run, as one file: the next run, perhaps on another machine, need not compile it again.

A run has a cache folder of its own. Kept are machine code and launchers, which are a tenth of what Triton writes; what
it went through on the way serves people only. A group of files names each by its whole path, so these are written anew.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

FILE = "triton-cache.tar.gz"
LIMIT = 64 << 20  # bytes of the file: what is carried between machines should not be larger
KEPT = (".json", ".cubin", ".so")
GROUP = "__grp__"  # a file's name begins so


def pack(folder: Path, archive: Path, limit: int = LIMIT) -> str:
    """The newest entries, as many as `limit` has room for; says what was done."""
    entries = sorted((entry for entry in folder.iterdir() if entry.is_dir()), key=lambda entry: -entry.stat().st_mtime)
    if not entries:
        return "Triton compiled nothing"
    kept, unfinished = 0, archive.with_suffix(".part")
    with unfinished.open("wb") as raw, tarfile.open(fileobj=raw, mode="w:gz", compresslevel=6) as tar:
        for entry in entries:
            if raw.tell() >= limit:
                break
            for file in entry.iterdir():
                if file.suffix in KEPT:
                    tar.add(file, f"{entry.name}/{file.name}")
            kept += 1
    unfinished.replace(archive)
    left = f"; {len(entries) - kept} more would be over {limit >> 20} MiB" if kept < len(entries) else ""
    return f"{archive.name} keeps {kept} entries of Triton's cache, {archive.stat().st_size / 1e6:.1f} MB{left}"


def unpack(archive: Path, folder: Path) -> str:
    """Raises ValueError where it cannot be read."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (OSError, EOFError, tarfile.TarError) as error:
        raise ValueError(f"{archive}: this is no cache of Triton's that a run has kept ({error})") from error
    for group in folder.glob(f"*/{GROUP}*"):
        names: dict[str, str] = json.loads(group.read_text())["child_paths"]
        here = {name: str(group.parent / name) for name in names if (group.parent / name).exists()}
        group.write_text(json.dumps({"child_paths": here}))
    return f"{archive.name}: {sum(1 for _ in folder.iterdir())} entries of Triton's cache"
