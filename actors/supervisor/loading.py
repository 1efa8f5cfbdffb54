"""How far a worker has loaded its model, and how long it will still take. Pure: callers pass the time.

The stages of a load say nothing about each other's length. So the time left is that of the last load, if there was one,
less what has passed; otherwise it is the rest of the present stage at its own pace.
"""

from typing import Final

from ...protocol.reports import Loading
from ...protocol.steps import LoadProgress

TELL_SECONDS: Final = 0.25  # watchers are told of a new stage at once, of progress within one this often


_STARTING: Final = LoadProgress(stage="starting the worker", done=0, total=0)


class LoadWatch:
    """One load after another."""

    def __init__(self) -> None:
        self._began = 0.0
        self._last_seconds: float | None = None  # that the last complete load took
        self._stage = ""
        self._stage_began = 0.0
        self._told = 0.0

    def begin(self, now: float) -> Loading:
        self._began = now
        return self._tell(_STARTING, now)

    def progress(self, progress: LoadProgress, now: float) -> Loading | None:
        """The report after this news; None if it is too soon for another one."""
        if progress.stage == self._stage and now - self._told < TELL_SECONDS:
            return None
        return self._tell(progress, now)

    def end(self, now: float) -> None:
        """The model is loaded."""
        self._last_seconds = now - self._began

    def _tell(self, progress: LoadProgress, now: float) -> Loading:
        if progress.stage != self._stage:
            self._stage, self._stage_began = progress.stage, now
        self._told = now
        share = progress.done / progress.total if progress.total else 0.0
        return Loading(
            stage=progress.stage,
            done=progress.done,
            total=progress.total,
            share=round(share, 4),
            seconds_left=self._seconds_left(share, now),
        )

    def _seconds_left(self, share: float, now: float) -> float | None:
        if self._last_seconds is not None:
            return round(max(0.0, self._last_seconds - (now - self._began)), 1)
        if not 0.0 < share < 1.0:
            return None
        return round((now - self._stage_began) * (1 - share) / share, 1)


def in_words(loading: Loading) -> str:
    """`packing weights, 40 %`"""
    return f"{loading.stage}, {100 * loading.share:.0f} %" if 0 < loading.share < 1 else loading.stage
