"""An answer kept as the frames of a WebSocket. Each socket that follows it has a name of its own for it."""

import msgspec

from ...protocol.requests import Generate
from ..generation.posting import Post
from ..generation.resumable_answer import Follower, ResumableAnswer


class SocketAnswer(ResumableAnswer):
    def __init__(self, request: Generate, name: str, seconds: float, longest: float) -> None:
        super().__init__(request, seconds, longest)
        self._name = name  # in its frames

    def hand_to(self, follower: Follower) -> None:
        super().hand_to(follower)
        if follower.name != self._name:
            follower.post = _renamed(follower.post, self._name, follower.name)


def _renamed(post: Post, old: str, new: str) -> Post:
    """Posts frames under another name. A frame begins with its type and its id."""
    before, after = (b'"id":%b,"seq":' % msgspec.json.encode(name) for name in (old, new))
    return lambda frame: post(frame.replace(before, after, 1))
