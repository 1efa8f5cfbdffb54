"""The batches of a server, wired: the data folder, the engine's half for lines, and the code that answers them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

import trio

from ..actors.batch.folder import DataFolder
from ..actors.batch.runner import AnswerLine, BatchRunner
from ..actors.batch_engine import BatchEngine
from ..actors.core import Core
from ..actors.database import data_folder
from ..actors.observe.flight_file import FOLDER
from ..actors.tokenizer.tokenizer import read_text_tokenizer
from ..protocol.errors import ApiError
from ..protocol.openai_batches import BatchEndpoint
from ..protocol.reports import BatchFigures
from ..protocol.settings import ServeSettings
from ..protocol.steps import Ready
from .succession import Succession

if TYPE_CHECKING:
    from ..actors.several.several import Several
    from ..web.generation.asked import Read


async def run_batches(
    settings: ServeSettings, core: Core, ready: Ready, *, until_idle: bool = False, follows: bool = False
) -> None:
    """Run the batches of the settings' data folder: for ever, or until all have ended. `follows`: as the folder's."""

    async def answer(endpoint: BatchEndpoint, body: bytes, tenant: str, name: str) -> bytes:
        return await _answer(engine, endpoint, body, tenant, name)

    work = _runner_with_work(settings, answer, core.batches, rows=ready.max_running, follows=follows)
    async with work as runner, _lines(settings, core, ready) as engine:
        await runner.run(until_idle)


async def run_beside(settings: ServeSettings, line: Succession, core: Core, ready: Ready) -> None:
    """What runs beside a server's engine: its batches in its turn, and the file of its flight recorder."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(core.record, data_folder(settings.data) / FOLDER)
        nursery.start_soon(line.in_turn, partial(run_batches, settings, core, ready, follows=line.follows))


class SeveralBatches:
    """The batches of a server of several models: one runner, and of each loaded engine the half for lines."""

    def __init__(self, line: Succession) -> None:
        self._line = line
        self._engines: dict[str, BatchEngine] = {}
        self._work = trio.Event()

    async def run_lines(self, settings: ServeSettings, core: Core, ready: Ready) -> None:
        """Beside the engine of one model. When it ends, its lines run again later."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(core.record, data_folder(settings.data) / FOLDER)
            await self._work.wait()
            async with _lines(settings, core, ready) as engine:
                self._engines[engine.model_name] = engine
                try:
                    await trio.sleep_forever()
                finally:
                    del self._engines[engine.model_name]

    async def run(self, several: "Several") -> None:
        """Run the batches in this server's turn."""
        await self._line.in_turn(partial(self._run, several))

    async def _run(self, several: "Several") -> None:
        """Run the batches of the server's data folder. A line names its model; one that is not loaded is loaded
        if there is room: a batch unloads no model that requests have loaded. A model that fails fails the line.
        """
        from ..web.generation.models import name_in

        async def answer(endpoint: BatchEndpoint, body: bytes, tenant: str, name: str) -> bytes:
            called, model = several.directory.find(name_in(body))
            engine = self._engines.get(model)
            if engine is None:
                several.models.begin_load_in_spare_room(model)
                raise ApiError("model_loading", f"The model {model} is not loaded.")
            return await _answer(engine, endpoint, body, tenant, name, called)

        settings = several.settings
        # As many as a CPU runs: whichever model the next line names, and not all that a GPU could.
        rows = settings.engine.largest_step().max_running
        work = _runner_with_work(settings, answer, several.batches, rows=rows, follows=self._line.follows)
        async with work as runner:
            self._work.set()
            await runner.run()


@asynccontextmanager
async def _runner_with_work(
    settings: ServeSettings, answer: AnswerLine, figures: BatchFigures, *, rows: int, follows: bool
) -> AsyncGenerator[BatchRunner]:
    """The runner of the settings' data folder, once there is something in it."""
    folder = DataFolder(data_folder(settings.data), follows=follows)
    longest = settings.limits.max_body_bytes
    runner = BatchRunner(folder, answer, rows=rows, max_line_bytes=longest, figures=figures)
    try:
        await runner.wait_for_work()
        yield runner
    finally:
        folder.close()


@asynccontextmanager
async def _lines(settings: ServeSettings, core: Core, ready: Ready) -> AsyncGenerator[BatchEngine]:
    """The half of the engine for lines, running."""
    engine = BatchEngine(settings, core)
    try:
        text = await read_text_tokenizer(settings.engine.model, settings.engine.chat_template)
        async with trio.open_nursery() as nursery:
            engine.start(nursery, text, ready, core.batch_texts)
            yield engine
            nursery.cancel_scope.cancel()
    finally:
        await engine.end(ApiError("shutting_down", "the server is shutting down"))


async def _answer(
    engine: BatchEngine, endpoint: BatchEndpoint, body: bytes, tenant: str, name: str, called: str | None = None
) -> bytes:
    from ..web.generation.line import answer_line

    return await answer_line(engine, _readers()[endpoint], body, tenant, name, called)


@cache
def _readers() -> "dict[BatchEndpoint, Read]":
    # With several web processes, the scheduler's needs this code of the web from its first batch on.
    from ..web.openai.dialect import CHAT, COMPLETIONS
    from ..web.openai.openai import read
    from ..web.responses.line import read_line

    return {
        "/v1/chat/completions": partial(read, CHAT),
        "/v1/completions": partial(read, COMPLETIONS),
        "/v1/responses": read_line,
    }
