"""`make test-amx`: the kernels' AMX code on a Sapphire Rapids that Bochs interprets, under a Linux that must permit it.

What is computed there must be, bit for bit, what the unit that the tests emulate computes here. The bundled model must
say the same: with the same bits of its logits where all products are exact, with others where the unit rounds in its
own way. Speed says nothing: a product of tiles takes Bochs a millisecond.

The kernels are compiled here, for that CPU, into a cache that goes along: Bochs would take long for it. So this machine
needs AVX-512 with VNNI and BF16 itself. Its own Linux does not permit AMX, so here vectors compute.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..arm64.greedy import MODEL

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-amx"
GUEST, HOME = FOLDER / "root", FOLDER / "root" / "home"
DISK_MIB = 2000
MOST_SECONDS = 1800
FORMATS = (("int8", "int8"), ("int8", "bfloat16"), ("bfloat16", "bfloat16"))  # of weights and cache
TEXTS = ("Once upon a time there was a little fox who", "What is 17 + 25?", "Say hello.")
FEATURES = (
    "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe,+avx512f,+avx512bw,+avx512vl,"
    "+avx512dq,+avx512cd,+avx512vnni,+avx512bf16,+amx-tile,+amx-int8,+amx-bf16"
)
TARGET = {"NUMBA_CPU_NAME": "sapphirerapids", "NUMBA_CPU_FEATURES": FEATURES}
START = """#!/bin/busybox sh
busybox mount -o remount,rw /
cd /work/triolet
{commands}
busybox sync
busybox mount -o remount,ro /
busybox poweroff -f
"""
MACHINE = """megs: 2048
cpu: model=sapphire_rapids, count=1, ips=100000000, ignore_bad_msrs=1
romimage: file=BIOS-bochs-latest
vgaromimage: file=vgabios.bin
ata0-master: type=disk, path=disk, mode=flat
ata1: enabled=1, ioaddr1=0x170, ioaddr2=0x370, irq=15
ata1-master: type=cdrom, path=boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=console
log: log
clock: sync=none, time0=local
display_library: nogui
panic: action=fatal
error: action=report
info: action=ignore
"""


def here(*arguments: str, **environment: str) -> Any:  # Any: JSON
    """What Python prints with these arguments on this machine."""
    command = [sys.executable, "-m", *arguments]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, check=True)
    return json.loads(ran.stdout)


def make_disk(programs: list[list[str]]) -> None:
    """The guest's disk, with the sources, the compiled kernels, and what runs after the start."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--", ":!loadtest/results"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    shutil.rmtree(GUEST / "work", ignore_errors=True)
    for name in names.decode().rstrip("\0").split("\0"):
        target = GUEST / "work" / "triolet" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    settings = {"PATH": "/usr/bin:/bin", "HOME": "/home", "PYTHONPATH": "/site:/work", "OPENBLAS_NUM_THREADS": "1"}
    commands = [f"export {name}={value}" for name, value in (settings | TARGET).items()]
    commands += [" ".join(["python3.11", "-m", *(f"'{word}'" for word in program)]) for program in programs]
    start = GUEST / "start"
    start.write_text(START.format(commands="\n".join(commands)))
    start.chmod(0o755)
    for place in ("proc", "sys", "dev", "tmp"):
        (GUEST / place).mkdir(exist_ok=True)
    disk = FOLDER / "disk"
    disk.unlink(missing_ok=True)
    subprocess.run(
        ["mkfs.ext4", "-q", "-O", "^has_journal", "-E", "root_owner=0:0", "-d", str(GUEST), str(disk), f"{DISK_MIB}M"],
        check=True,
    )


def there(programs: int) -> list[Any]:  # Any: JSON
    """What the programs on the disk print in the interpreted machine."""
    (FOLDER / "machine").write_text(MACHINE)
    for name in ("console", "disk.lock"):
        (FOLDER / name).unlink(missing_ok=True)
    command = [str(FOLDER / "bochs" / "bochs"), "-q", "-f", "machine"]
    subprocess.run(command, cwd=FOLDER, input=b"c\n", stdout=subprocess.DEVNULL, timeout=MOST_SECONDS)
    said = (FOLDER / "console").read_text(errors="replace")
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if len(found) != programs:
        sys.exit(f"the interpreted machine did not run all programs:\n{said[-3000:]}")
    return found


def main() -> None:
    if sys.version_info[:2] != (3, 11):
        sys.exit("it compiles for the Python of Debian 12: remove .venv, then `make PYTHON=python3.11 test-amx`")
    began = time.monotonic()
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    prompts = json.dumps([tokenizer.encode(text).ids for text in TEXTS])
    programs = [["tests.amx.cases", "real"]]
    programs += [["tests.arm64.greedy", prompts, *formats] for formats in FORMATS]
    wanted = [here("tests.amx.cases", "emulated"), *(here(*program) for program in programs[1:])]
    HOME.mkdir(mode=0o700, exist_ok=True)
    for program in programs:
        here(*program, HOME=str(HOME), **TARGET)
    make_disk(programs)
    found = there(len(programs))
    faults = [name for name, digest in wanted[0]["digests"].items() if found[0]["digests"][name] != digest]
    if not found[0]["tiles are used"]:
        faults.append("there was no tile unit, or Linux did not permit it")
    for formats, ours, theirs in zip(FORMATS, wanted[1:], found[1:], strict=True):
        same_bits = "bfloat16" not in formats
        if ours["tokens"] != theirs["tokens"] or (ours["logits"] == theirs["logits"]) != same_bits:
            faults.append("the bundled model with weights and cache in " + " and ".join(formats))
    if faults:
        sys.exit("other than expected on a CPU with AMX: " + "; ".join(faults))
    cases, took = len(wanted[0]["digests"]), f"{time.monotonic() - began:.0f} s"
    print(f"AMX gives the bits of the emulated unit in {cases} cases; the bundled model says the same ({took})")


main()
