"""The LoRA adapters of a worker, by number. A sequence holds its own, so forgetting one ends nothing."""

from msgspec import Struct

from ...protocol.steps import SequenceRecord


class LoadedAdapter(Struct, frozen=True):
    """An adapter on its device: `place` is what a batch says of it, `held` keeps its memory alive."""

    place: int
    held: object = None


class LoadedAdapters:
    """One thread calls it."""

    def __init__(self) -> None:
        self._loaded: dict[int, LoadedAdapter] = {}

    def add(self, number: int, adapter: LoadedAdapter) -> None:
        self._loaded[number] = adapter

    def free_place(self, places: int) -> int | None:
        """One from 0 on that none of them has."""
        taken = {adapter.place for adapter in self._loaded.values()}
        return next((place for place in range(places) if place not in taken), None)

    def forget(self, number: int) -> None:
        """Unknown numbers are allowed: loading it may have failed."""
        self._loaded.pop(number, None)

    def of(self, record: SequenceRecord) -> LoadedAdapter | None:
        if not record.adapter:
            return None
        if record.adapter not in self._loaded:
            raise ValueError(f"adapter {record.adapter} of sequence {record.sequence} is not known here; load it first")
        return self._loaded[record.adapter]
