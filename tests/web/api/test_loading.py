"""While the model is loaded: every request that needs it is told so, how far it is and when to come back."""

from typing import Any

import pytest

from triolet.protocol.settings import ServeSettings
from triolet.protocol.steps import LoadProgress

from .conftest import READY, ScriptedEngine, Web
from .test_websocket import CHAT, connect

PROMPT = {"prompt": "Hi"}


@pytest.fixture
def loading(web: Web) -> ScriptedEngine:
    """A worker that loads for two seconds, as the one before did for five; but no request was ever served."""
    engine, worker = web.engine, web.engine.worker
    worker.begin(16, 0.0)
    worker.set_ready(READY, 5.0)
    engine.ready, worker.ready = None, None
    worker.lose("loading", "the model is being loaded")
    worker.begin(17, 100.0)
    worker.progress(LoadProgress(stage="packing weights", done=0, total=10), 100.0)
    worker.progress(LoadProgress(stage="packing weights", done=4, total=10), 102.0)
    engine.state = worker.health(102.0)
    return engine


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/chat/completions", CHAT),
        ("POST", "/v1/chat/completions", CHAT | {"stream": True}),
        ("POST", "/v1/completions", PROMPT),
        ("GET", "/v1/models", None),
        ("POST", "/tokenize", PROMPT),
        ("POST", "/detokenize", {"tokens": [97]}),
        ("GET", "/health", None),
        ("GET", "/health/ready", None),
    ],
)
async def test_what_needs_the_model_says_how_far_it_is(
    web: Web, loading: ScriptedEngine, method: str, path: str, body: dict[str, Any] | None
) -> None:
    response = await web.client.request(method, path, json=body)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "3"
    error = response.json()["error"]
    assert error["code"] == "model_loading"
    assert "packing weights, 40 %" in error["message"]
    assert error["loading"] == {
        "stage": "packing weights", "done": 4, "total": 10, "share": 0.4, "seconds_left": 3.0,
    }  # fmt: skip


@pytest.mark.parametrize("path", ["/", "/dashboard", "/health/live", "/metrics", "/version", "/openapi.json"])
async def test_what_does_not_need_it_answers(web: Web, loading: ScriptedEngine, path: str) -> None:
    assert (await web.client.get(path)).status_code == 200


async def test_metrics_say_it(web: Web, loading: ScriptedEngine) -> None:
    text = (await web.client.get("/metrics")).text
    assert "triolet_ready 0.0" in text
    assert 'triolet_loading_ratio{stage="packing weights"} 0.4' in text


async def test_a_socket_is_told_and_its_requests_fail_until_then(web: Web, loading: ScriptedEngine) -> None:
    async with connect(web) as client:
        frame = await client.hear()
        assert (frame["type"], frame["ready"], frame["status"]) == ("status", False, "loading")
        assert frame["loading"]["share"] == 0.4
        await client.create("a")
        failed = await client.hear()
        assert (failed["type"], failed["error"]["code"], failed["retry_after"]) == ("failed", "model_loading", 3)
        loading.worker.progress(LoadProgress(stage="loading kernels", done=0, total=1), 103.0)
        assert (await client.hear())["loading"]["stage"] == "loading kernels"
        loading.worker.set_ready(READY, 104.0)
        loading.ready = READY
        assert await client.hear() == {"type": "status", "ready": True, "status": "ready", "reason": ""}
        await client.create("b")
        assert (await client.hear())["type"] == "started"


async def test_a_socket_is_told_of_a_lost_worker_and_of_the_next_one(web: Web) -> None:
    async with connect(web) as client:
        await client.create("a")
        await client.hear_all("a")  # nothing before it: a worker that is well is no news
        web.engine.worker.lose("restarting", "the worker was killed; another one is being started")
        frame = await client.hear()
        assert (frame["type"], frame["status"], "killed" in frame["reason"]) == ("status", "restarting", True)
        web.engine.worker.begin(18, 0.0)
        assert "starting the worker" in (await client.hear())["reason"]
        web.engine.worker.set_ready(READY, 1.0)
        assert (await client.hear())["ready"]


class TestWithKeys:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return ServeSettings(engine=settings.engine, limits=settings.limits, api_keys=("first",))

    async def test_nothing_is_said_before_the_key(self, web: Web, loading: ScriptedEngine) -> None:
        for path in ("/health/ready", "/v1/models"):
            assert (await web.client.get(path)).status_code == 401
        async with connect(web) as client:
            loading.worker.progress(LoadProgress(stage="loading kernels", done=0, total=1), 103.0)
            await client.say(type="auth", api_key="first")
            frame = await client.hear()
            assert (frame["type"], frame["loading"]["stage"]) == ("status", "loading kernels")
