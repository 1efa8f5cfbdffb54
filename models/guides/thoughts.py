"""Thoughts: what an answer of a model that thinks may begin with, and when its thoughts are over."""

from typing import Literal

from ...protocol.requests import Thinking


class Thoughts:
    """Where an answer is in its thoughts, from its tokens alone."""

    __slots__ = ("_begin", "_begun", "_budget", "_completes", "_end", "_recent", "_spent", "place")

    def __init__(self, thinking: Thinking | None, budget: int | None, *, completes: bool) -> None:
        """`completes`: an answer that begins like the mark must go on like it, as nothing else may begin so."""
        self._begin: tuple[int, ...] = thinking.begin if thinking else ()
        self._end: tuple[int, ...] = thinking.end if thinking else ()
        self._budget = budget
        self._completes = completes
        self._begun = 0  # tokens of the beginning mark so far
        self._spent = 0  # tokens of the thoughts
        self._recent: tuple[int, ...] = ()  # the last ones, as many as the end mark has
        self.place: Literal["before", "inside", "over"] = "over"
        if thinking and self._end:  # thoughts that nothing ends would never let the grammar begin
            self.place = "inside" if thinking.open else "before" if self._begin else "over"

    def take(self, token: int) -> bool:
        """The answer's next token; returns whether it belongs to the thoughts and their marks."""
        if self.place == "over":
            return False
        if self.place == "before":
            if token != self._begin[self._begun]:
                self.place = "over"
                return False
            self._begun += 1
            if self._begun == len(self._begin):
                self.place = "inside"
            return True
        self._spent += 1
        self._recent = (*self._recent, token)[-len(self._end) :]
        if self._recent == self._end:
            self.place = "over"
        return True

    def forced(self) -> tuple[int, ...]:
        """The rest of a mark: of the beginning, once the model has begun it, and of the end when no budget is left."""
        if self.place == "before":
            return self._begin[self._begun :] if self._begun and self._completes else ()
        if self.place == "inside" and self._budget is not None and self._spent >= self._budget:
            return self._end[self._end_begun() :]
        return ()

    def _end_begun(self) -> int:
        """How many tokens of the end mark the model has just written itself."""
        sizes = range(len(self._end) - 1, 0, -1)
        return next((size for size in sizes if self._recent[-size:] == self._end[:size]), 0)

    @property
    def first(self) -> int | None:
        """The token by which the answer may begin to think, instead of what the grammar allows."""
        return self._begin[0] if self.place == "before" and not self._begun else None
