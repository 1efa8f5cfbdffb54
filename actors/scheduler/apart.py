"""Steps of one suspect, and steps of all others, in turn. Pure.

Nothing else is in flight beside a suspect's step, and the worker prepares nothing meanwhile: if it dies then, the
culprit is known. In the others' steps suspects keep their KV, so each of their own steps brings them on.
"""

from collections.abc import Callable, Container

from ...protocol.steps import Step
from .sequence import Sequence


class Apart:
    """Whose turn it is. `flying` is the last step of a suspect."""

    def __init__(self) -> None:
        self.flying = 0
        self._suspects_turn = True

    def plan(
        self,
        suspects: list[Sequence],
        in_flight: Container[int],
        together: Callable[[], Step | None],
        alone: Callable[[Sequence], Step | None],
    ) -> Step | None:
        """The next step: of one of these suspects, if any can be computed now, or of the others."""
        if self.flying in in_flight:
            return None
        if suspects and self._suspects_turn:
            return None if in_flight else self._first(suspects, alone) or together()
        step = together()
        self._suspects_turn = True
        return step if step or in_flight else self._first(suspects, alone)

    def _first(self, suspects: list[Sequence], alone: Callable[[Sequence], Step | None]) -> Step | None:
        for suspect in suspects:
            if step := alone(suspect):
                self.flying, self._suspects_turn = step.step, False
                return step
        return None
