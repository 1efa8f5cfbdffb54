"""Real workers that crash, raise and hang in the middle of a batch: one request pays, and the others lose nothing."""

from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from triolet.actors.crash_report import FOLDER, CrashReport
from triolet.actors.supervisor import supervisor
from triolet.actors.supervisor.child_process import start_worker
from triolet.actors.supervisor.restart_budget import RESTARTS
from triolet.loadtest.chaos.troubled_worker import CRASHES, HANGS, MODULE, RAISES
from triolet.protocol.events import Failed
from triolet.protocol.requests import TokenPrompt

from .engine_house import Answer, read_all, running, settings_for, submit, until_balanced

NEIGHBOURS = 3


@pytest.fixture(autouse=True)
def troubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "start_worker", partial(start_worker, module=MODULE))


async def test_each_culprit_fails_at_its_second_loss_and_the_others_lose_no_token_and_no_restart(
    tmp_path: Path,
) -> None:
    async with running(replace(settings_for(hang_timeout=1.0), data=str(tmp_path))) as engine:
        texts = [f"Tell me of {number} things." for number in range(NEIGHBOURS)]
        whole = [(await Answer().read(submit(engine, text, max_tokens=60, ignore_eos=True))).text() for text in texts]
        for number, trouble in enumerate((CRASHES, RAISES, HANGS), 1):
            prompt = TokenPrompt(token_ids=(trouble, 300 + number))
            streams = [submit(engine, text, max_tokens=60, ignore_eos=True) for text in texts]
            culprit, *others = await read_all([submit(engine, prompt, ignore_eos=True), *streams])
            assert isinstance(culprit.end, Failed)
            assert (culprit.end.code, "died 2 times" in culprit.end.message) == ("engine_error", True)
            assert [other.text() for other in others] == whole
            assert engine.gateway.worker.restarts == 2 * number
            again = await Answer().read(submit(engine, prompt, ignore_eos=True))
            assert isinstance(again.end, Failed)
            assert again.end.code == "quarantined"
        assert engine.gateway.worker.restarts == 6 > RESTARTS
        assert (await engine.health()).ready
        await until_balanced(engine)
    reports = [msgspec.json.decode(file.read_bytes(), type=CrashReport) for file in (tmp_path / FOLDER).iterdir()]
    assert [(report.losses, report.prompt_tokens, report.tokens) for report in reports] == [(2, (2,), ())] * 3
    assert all(len(report.steps[0].chunks) == 1 and report.model["device"] == "cpu" for report in reports)
