"""What Triton compiled goes from one folder to another: it is found there, and nothing is compiled again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triolet.loadtest.device.gpu_triton_cache import pack, unpack

# Compiles one kernel, moves the cache, and compiles it again; prints which was found in the cache. In a
# process of its own: this one interprets.
COMPILE = """
import json, sys, torch
from pathlib import Path
from triton import knobs
from triolet.kernels.gpu.compiling import compiled_kernel
from triolet.kernels.gpu.launches import recording
from triolet.kernels.logit_cap.gpu import cap_logits
from triolet.loadtest.device.gpu_triton_cache import pack, unpack

folder = Path(sys.argv[1])
forms, found, code = [], [], set()
with recording(forms.append):
    cap_logits(torch.empty(2, 64, device="meta"), factor=1.0, cap=5.0)
knobs.compilation.listener = lambda **told: found.append(told["cache_hit"])
for place in ("one", "two"):
    knobs.cache.dir = str(folder / place)
    code.add(compiled_kernel(forms[0], 90).asm["cubin"])
    if place == "one":
        said = [pack(folder / "one", folder / "kept.tar.gz"), unpack(folder / "kept.tar.gz", folder / "two")]
        (folder / "one").rename(folder / "gone")  # files name each other by their whole paths
print(json.dumps([found, len(code), *said]))
"""


def test_a_kernel_is_compiled_once_for_two_folders(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(tmp_path)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    found, codes, packed, unpacked = json.loads(done.stdout)
    assert found == [False, True]
    assert codes == 1
    assert packed.startswith("kept.tar.gz keeps 1 entries")
    assert unpacked.startswith("kept.tar.gz: 1 entries")
    kept = {path.suffix for path in (tmp_path / "two").glob("*/*")}
    assert kept == {".json", ".cubin"}


def test_what_is_too_large_to_carry_is_said(tmp_path: Path) -> None:
    folder, kept = tmp_path / "cache", tmp_path / "kept.tar.gz"
    folder.mkdir()
    assert pack(folder, kept) == "Triton compiled nothing"
    assert not kept.exists()
    for place in range(4):
        (folder / f"entry{place}").mkdir()
        (folder / f"entry{place}" / "one.cubin").write_bytes(os.urandom(1 << 18))
        (folder / f"entry{place}" / "one.ptx").write_text("for people")
        os.utime(folder / f"entry{place}", (place, place))
    assert pack(folder, kept, limit=1 << 18).endswith("MB; 2 more would be over 0 MiB")
    unpack(kept, tmp_path / "again")
    assert {path.name for path in (tmp_path / "again").glob("*/*")} == {"one.cubin"}
    assert {path.name for path in (tmp_path / "again").iterdir()} == {"entry2", "entry3"}  # the newest


@pytest.mark.parametrize("content", [b"", b"no archive at all"])
def test_a_file_that_is_no_cache_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "other.tar.gz"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"other\.tar\.gz: this is no cache"):
        unpack(file, tmp_path / "cache")
