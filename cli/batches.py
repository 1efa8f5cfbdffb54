"""The batches of a server, wired: the data folder, the engine's half for lines, and the code that answers them."""

from functools import partial
from typing import TYPE_CHECKING

import trio

from ..actors.batch.folder import DataFolder
from ..actors.batch.runner import BatchRunner
from ..actors.batch_engine import BatchEngine
from ..actors.core import Core
from ..actors.database import data_folder
from ..actors.tokenizer.tokenizer import read_text_tokenizer
from ..protocol.errors import ApiError
from ..protocol.openai_batches import BatchEndpoint
from ..protocol.settings import ServeSettings
from ..protocol.steps import Ready

if TYPE_CHECKING:
    from ..web.generation.asked import Read


async def run_batches(settings: ServeSettings, core: Core, ready: Ready, *, until_idle: bool = False) -> None:
    """Run the batches of the settings' data folder: for ever, or until all have ended."""
    folder = DataFolder(data_folder(settings.data))
    engine = BatchEngine(settings, core)

    async def answer(endpoint: BatchEndpoint, body: bytes, tenant: str, name: str) -> bytes:
        return await answer_line(engine, readers[endpoint], body, tenant, name)

    runner = BatchRunner(
        folder,
        answer,
        rows=ready.max_running,
        max_line_bytes=settings.limits.max_body_bytes,
        figures=core.batches,
    )
    try:
        await runner.wait_for_work()
        # With several web processes, this one needs the code of the web from now on.
        from ..web.generation.line import answer_line
        from ..web.openai.dialect import CHAT, COMPLETIONS
        from ..web.openai.openai import read
        from ..web.responses.line import read_line

        readers: dict[BatchEndpoint, Read] = {
            "/v1/chat/completions": partial(read, CHAT),
            "/v1/completions": partial(read, COMPLETIONS),
            "/v1/responses": read_line,
        }
        text = await read_text_tokenizer(settings.engine.model)
        async with trio.open_nursery() as nursery:
            engine.start(nursery, text, ready, core.batch_texts)
            await runner.run(until_idle)
            nursery.cancel_scope.cancel()
    finally:
        await engine.end(ApiError("shutting_down", "the server is shutting down"))
        folder.close()
