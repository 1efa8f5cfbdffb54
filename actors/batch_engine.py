"""The outer half of the engine for the lines of batches: beside the web's, in the scheduler's process.

It has places, texts and counters of its own: lines take no place from clients, and are in none of their figures. Only
the tokens of a key's quota are those of its requests too.
"""

from msgspec import structs

from ..protocol.explanation import Standing
from ..protocol.settings import ServeSettings
from .core import Core
from .front_actors import FrontActors

MOST_LINES = 1 << 16  # at a time: all rows for every API key


class BatchEngine(FrontActors):
    """Start it with the core's `batch_texts`."""

    def __init__(self, settings: ServeSettings, core: Core) -> None:
        limits = structs.replace(settings.limits, max_requests=MOST_LINES)
        own = structs.replace(settings, limits=limits, api_keys=(), key_tables=())  # no division of places
        super().__init__(
            own, scheduler=core.to_scheduler, status=core.status, adapters=core.adapters, quotas=core.quotas
        )

    async def standing(self, id: str) -> Standing | None:
        """Nobody asks: clients know no ids of lines."""
        return None
