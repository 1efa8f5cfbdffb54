"""The suite's memory: a JSON line for every case begun and finished, so that a run that was cut goes on where it was.

A case that was begun twice and never finished took the process with it: it is a crash, and is not begun again.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from triolet.loadtest.device.gpu_case import Finding, Machine

ATTEMPTS = 2


class Journal:
    """DIR/cases.jsonl. Raises ValueError where the folder holds another machine's run."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "cases.jsonl"
        self.findings: dict[str, Finding] = {}
        self._begun: Counter[str] = Counter()
        header = {"machine": machine.name, "capability": machine.capability, "versions": machine.versions}
        if not self._path.exists():
            self._write(header)
            return
        for number, line in enumerate(self._path.read_text().splitlines()):
            try:
                values = json.loads(line)
            except ValueError:  # the line that a cut left unfinished
                continue
            if number == 0 and values != header:
                raise ValueError(f"--out {folder} holds a run on {values}, this is {header}: name another folder")
            if "begun" in values:
                self._begun[values["begun"]] += 1
            elif "status" in values:
                self.findings[values["name"]] = Finding.from_json(values)

    def begin(self, name: str) -> bool:
        """False where it crashed before: then that is its finding."""
        if self._begun[name] >= ATTEMPTS:
            self.finish(Finding(name, "crashed", 0.0, note=f"the process ended in it {ATTEMPTS} times, or was cut"))
            return False
        self._begun[name] += 1
        self._write({"begun": name})
        return True

    def finish(self, finding: Finding) -> None:
        self.findings[finding.name] = finding
        self._write(finding.as_json())

    def _write(self, values: object) -> None:
        text = json.dumps(values)
        # A cut may have left half a line: never write behind it.
        broken = self._path.exists() and not self._path.read_bytes().endswith(b"\n") and self._path.stat().st_size > 0
        with self._path.open("a") as file:
            file.write(("\n" if broken else "") + text + "\n")
