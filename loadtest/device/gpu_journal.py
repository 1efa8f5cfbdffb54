"""The suite's memory: a JSON line for every case begun and finished, so that a run that was cut goes on where it was.

A case that was begun several times and never finished took the whole run with it: it is a crash, and is not begun
again. A case that the run itself cut short, for want of time, is as if it had not been begun.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from triolet.loadtest.device.gpu_case import Finding, GpuMachine

ATTEMPTS = 3


class Journal:
    """DIR/cases.jsonl, for several threads. Raises ValueError where the folder holds another machine's run, or one of
    which nobody knows the machine.
    """

    def __init__(self, folder: Path, machine: GpuMachine) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "cases.jsonl"
        self._lock = threading.Lock()
        self.findings: dict[str, Finding] = {}
        self._begun: Counter[str] = Counter()
        header = {"machine": machine.name, "capability": machine.capability, "versions": machine.versions}
        if not self._path.exists():
            self._write(header)
            return
        lines = [_read(line) for line in self._path.read_text().splitlines()]
        if not lines or lines[0].keys() != header.keys():
            raise ValueError(f"--out {folder}: {self._path.name} does not begin with its machine: name another folder")
        if lines[0] != header:
            raise ValueError(f"--out {folder} holds a run on {lines[0]}, this is {header}: name another folder")
        for values in lines[1:]:
            if "begun" in values:
                self._begun[values["begun"]] += 1
            elif "cut" in values:
                self._begun[values["cut"]] -= 1
            elif "status" in values:
                self.findings[values["name"]] = Finding.from_json(values)

    def begin(self, name: str) -> bool:
        """False where it crashed before: then that is its finding."""
        if self._begun[name] >= ATTEMPTS:
            note = f"the whole run ended in it {ATTEMPTS} times, or was cut then"
            self.finish(Finding(name, "crashed", 0.0, note=note))
            return False
        self._begun[name] += 1
        self._write({"begun": name})
        return True

    def cut(self, name: str) -> None:
        """The run's time is up: begun in vain."""
        self._begun[name] -= 1
        self._write({"cut": name})

    def finish(self, finding: Finding) -> None:
        self.findings[finding.name] = finding
        self._write(finding.as_json())

    def _write(self, values: object) -> None:
        text = json.dumps(values)
        with self._lock, self._path.open("ab+") as file:
            # A cut may have left half a line: never write behind it.
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    text = "\n" + text
            file.write(text.encode() + b"\n")


def _read(line: str) -> dict[str, Any]:  # Any: JSON
    """Nothing of a line that a cut left unfinished."""
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError):
        return {}
