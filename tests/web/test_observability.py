"""One real server with a small batch, a collector and vLLM's names: what it says of itself while it works."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio_websocket import open_websocket_url

pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry is not installed")
from ..otlp_collector import Collector, attributes, collecting

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "triolet.json"
AHEAD = 8  # long answers before the one that is watched: seconds of work, ended when it has been seen waiting
LONG = {"prompt": "One", "max_tokens": 1500, "ignore_eos": True}


class House(NamedTuple):
    url: str
    collector: Collector


@pytest.fixture(scope="module")
def house(serve_process: Callable[..., Any]) -> Iterator[House]:
    options = ("--max-running", "2", "--metric-aliases", "vllm", "--otlp-endpoint")
    with collecting() as collector:
        yield House(serve_process(*options, collector.url).url, collector)


def metrics_of(house: House) -> dict[str, float]:
    """Samples without labels of their own, and the sum over the labels where there are some."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(house.url + "/metrics", timeout=60).text):
        found.setdefault(family.name, 0.0)
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


async def test_a_request_in_a_crowd_is_told_why_it_waits(house: House) -> None:
    headers = {"X-Triolet-Explain": "1", "X-Request-Id": "watched"}
    body = {"prompt": "Two", "max_tokens": 4, "stream": True}
    said: list[dict[str, Any]] = []
    asked: dict[str, Any] = {}
    async with httpx.AsyncClient(base_url=house.url, timeout=60) as client:
        async with open_websocket_url(house.url.replace("http", "ws", 1) + "/v1/stream") as crowd:
            for number in range(AHEAD):
                await crowd.send_message(json.dumps({"type": "create", "id": str(number), "request": LONG}))
            started = 0
            while started < 2:
                started += json.loads(await crowd.get_message())["type"] == "started"
            async with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
                lines = response.aiter_lines()
                async for line in lines:
                    if line.startswith(": explain "):
                        said.append(json.loads(line.removeprefix(": explain ")))
                        if said[-1]["state"] == "waiting" and said[-1]["blocked_on"]["kind"] != "step":
                            asked = (await client.get("/v1/requests/watched")).json()
                            break
                # The crowd leaves, and its turn comes.
                await crowd.aclose()
                rest = [line async for line in lines if line]
        ended = (await client.get("/v1/requests/watched")).json()
    assert said[-1]["position"] > 1
    for found in (said[-1], asked):
        assert found["blocked_on"]["kind"] in ("order", "rows")
        assert {found["blocked_on"][name] for name in ("need", "free", "total")} == {1, 0, 2}
        assert found["blocked_on"]["holders"] == {"running": 2, "parked": 0, "yours": 2}
        assert found["tenant"]["limit"] == 1024
        assert 3 <= found["tenant"]["used"] <= AHEAD + 1
    assert rest[-1] == "data: [DONE]"
    timeline = ended["timeline"]
    assert ended["state"] == "finished"
    assert 0 < timeline["tokenized"] < timeline["started"] < timeline["first_token"] <= timeline["finished"]


async def test_the_collector_gets_the_request_as_its_client_traced_it(house: House) -> None:
    parent = f"00-{'12' * 16}-{'34' * 8}-01"
    body = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 8, "temperature": 0.5}
    async with httpx.AsyncClient(base_url=house.url, timeout=60) as client:
        answer = (await client.post("/v1/chat/completions", json=body, headers={"traceparent": parent})).json()
    (root,) = await trio.to_thread.run_sync(house.collector.wait_for_roots, 1, "12" * 16)
    found = attributes(root)
    assert root.parent_span_id.hex() == "34" * 8
    assert root.name == "chat triolet-demo"
    assert found["gen_ai.request.id"] == answer["id"].removeprefix("chatcmpl-")
    assert (found["gen_ai.request.max_tokens"], found["gen_ai.request.temperature"]) == (8, 0.5)
    assert found["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"] == answer["usage"]["completion_tokens"]
    assert found["gen_ai.response.finish_reasons"] == [answer["choices"][0]["triolet_finish_reason"]]
    children = house.collector.children(root)
    assert [child.name for child in children] == ["tokenize", "queue", "prefill", "decode"]
    assert children[0].start_time_unix_nano == root.start_time_unix_nano
    assert children[-1].end_time_unix_nano == root.end_time_unix_nano
    assert metrics_of(house)["triolet_traces_exported_total"] >= 1


def test_a_dashboard_for_vllm_finds_its_metrics_and_our_numbers(house: House) -> None:
    text = httpx.get(house.url + "/metrics", timeout=60).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    ours = metrics_of(house)
    for theirs, name in {
        "vllm:num_requests_running": "triolet_requests_running",
        "vllm:kv_cache_usage_perc": "triolet_kv_usage_ratio",
        "vllm:gpu_cache_usage_perc": "triolet_kv_usage_ratio",
        "vllm:generation_tokens_total": "triolet_generation_tokens_total",
        "vllm:prefix_cache_queries_total": "triolet_prefix_query_tokens_total",
        "vllm:prefix_cache_hits_total": "triolet_prefix_hit_tokens_total",
        "vllm:num_preemptions_total": "triolet_preemptions_total",
        "vllm:time_to_first_token_seconds_count": "triolet_time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_sum": "triolet_inter_token_latency_seconds_sum",
        "vllm:time_per_output_token_seconds_sum": "triolet_inter_token_latency_seconds_sum",
        "vllm:e2e_request_latency_seconds_bucket": "triolet_request_duration_seconds_bucket",
        "vllm:request_queue_time_seconds_sum": "triolet_request_queue_seconds_sum",
        "vllm:request_success_total": "triolet_requests_finished_total",
    }.items():
        assert ours[theirs] == ours[name], theirs
    assert {"vllm:num_requests_waiting", "vllm:prompt_tokens"} <= set(families)
    for name, family in families.items():
        if name.startswith("vllm:"):
            assert all(sample.labels["model_name"] == "triolet-demo" for sample in family.samples), name
    reasons = {sample.labels["finished_reason"]: sample.value for sample in families["vllm:request_success"].samples}
    assert set(reasons) == {"stop", "length", "abort", "error"}
    assert reasons["abort"] >= 1  # the crowd


PANEL = {"id", "type", "title", "gridPos"}
PROMQL = {"sum", "min", "max", "rate", "by", "le", "histogram_quantile", "job", "instance", "reason", "code", "state"}


def names_in(expression: str) -> set[str]:
    """Names of metrics in a PromQL expression: words that are no function, no label and not quoted."""
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]', "", expression)
    return set(re.findall(r"[A-Za-z_:][\w:]*", bare)) - PROMQL


def test_the_dashboard_is_one_and_every_name_in_it_is_in_the_metrics(house: House) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time", "refresh"} <= set(dashboard)
    panels = dashboard["panels"]
    assert all(set(panel) >= PANEL for panel in panels)
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(panels))) <= variables | {"__rate_interval"}
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    names = {name for expression in expressions for name in names_in(expression)}
    for body in ({"prompt": "x", "max_tokens": 100_000}, {}):  # one error by the engine, one before it
        assert httpx.post(house.url + "/v1/completions", json=body, timeout=60).status_code == 400
    real = set(metrics_of(house))
    assert len(names) > 20
    assert names <= real, f"not in /metrics: {sorted(names - real)}"
    assert names_in('sum(rate(triolet_gone_total{job=~"$job"}[5m]))') == {"triolet_gone_total"}
