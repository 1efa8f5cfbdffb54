"""Traces: what a request looks like as spans, and that nothing about sending them can hold up or lose count."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from triolet.actors.observe import traces
from triolet.actors.observe.spans import phase_spans, root_span
from triolet.actors.observe.traces import Traces, open_traces
from triolet.cli.refusals import Refusal, refuse_missing_packages
from triolet.protocol.settings import EngineSettings, ServeSettings

from .test_explain import history

pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry is not installed")
from ...otlp_collector import Collector, attributes, collecting

PARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"
ENDED: dict[str, Any] = {"finished": 12.0, "reason": "length", "reasons": ("length", "stop"), "name": "mine"}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(traces, "_BATCH_SECONDS", 0.0)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def test_phases_follow_each_other_and_fill_the_root() -> None:
    root = root_span(history(**ENDED))
    phases = list(phase_spans(history(**ENDED)))
    assert [phase.name for phase in phases] == ["tokenize", "queue", "prefill", "decode"]
    assert phases[0].start == root.start == 1_010_000_000_000
    assert phases[-1].end == root.end == 1_012_000_000_000
    assert [one.end for one in phases[:-1]] == [one.start for one in phases[1:]]


def test_a_request_that_ended_in_the_queue_has_no_later_phase() -> None:
    ended = history(finished=10.75, reason="cancelled", started=None, first_token=None)
    assert [phase.name for phase in phase_spans(ended)] == ["tokenize", "queue"]
    found = root_span(ended).attributes
    assert found["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert "gen_ai.latency.time_to_first_token" not in found
    assert list(phase_spans(ended))[-1].end == root_span(ended).end


def test_attributes_are_those_of_the_conventions_and_of_vllm() -> None:
    found = root_span(history(**ENDED)).attributes
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "triolet",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.id": "r1",
        "gen_ai.request.id": "r1",
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.n": 1,
        "gen_ai.request.max_tokens": 8,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.prompt_tokens": 3,
        "gen_ai.usage.completion_tokens": 2,
        "gen_ai.response.finish_reasons": ("length", "stop"),
        "gen_ai.latency.e2e": 2.0,
        "gen_ai.latency.time_to_first_token": 1.0,
        "gen_ai.latency.time_in_queue": 0.25,
        "gen_ai.latency.time_in_model_prefill": 0.5,
        "gen_ai.latency.time_in_model_decode": 1.0,
        "gen_ai.latency.time_in_model_inference": 1.5,
        "http.request.header.x-request-id": "mine",
    }


def test_spans_reach_the_collector_with_their_parent_and_their_error(collector: Collector) -> None:
    sender = Traces(collector.url)
    sender.offer(history("r1", **ENDED, traceparent=PARENT))
    sender.offer(history("r2", finished=11.5, reason="error", error="engine_error"))
    sender.close()
    first, second = sorted(collector.wait_for_roots(2), key=lambda span: attributes(span)["gen_ai.request.id"])
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == ("ab" * 16, "cd" * 8)
    assert second.parent_span_id == b""
    assert (first.name, first.kind, first.status.code) == ("chat m", 2, 0)  # SERVER, unset
    assert (second.status.code, attributes(second)["error.type"]) == (2, "engine_error")
    assert attributes(first)["gen_ai.response.finish_reasons"] == ["length", "stop"]
    for root in (first, second):
        children = collector.children(root)
        assert [child.name for child in children] == ["tokenize", "queue", "prefill", "decode"]
        assert {child.trace_id for child in children} == {root.trace_id}
    assert set(collector.paths) == {"/v1/traces"}
    assert collector.resources[0]["service.name"] == "triolet"
    assert sender.counts == {"exported": 2, "queue_full": 0, "export_failed": 0}


def test_a_trace_that_its_client_does_not_sample_is_not_sent(collector: Collector) -> None:
    sender = Traces(collector.url)
    sender.offer(history("r1", **ENDED, traceparent=PARENT[:-1] + "0"))
    sender.offer(history("r2", **ENDED))
    sender.close()
    (root,) = collector.wait_for_roots(1)
    assert attributes(root)["gen_ai.request.id"] == "r2"


def test_what_a_held_up_collector_leaves_no_room_for_is_dropped_and_counted(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_WAITING", 4)
    collector.answering.clear()
    sender = Traces(collector.url)
    sender.offer(history("r0", **ENDED))
    collector.wait_for_roots(1)  # the thread waits for the answer
    for number in range(1, 7):
        sender.offer(history(f"r{number}", **ENDED))
    assert sender.counts["queue_full"] == 2
    collector.answering.set()
    sender.close()
    assert sender.counts == {"exported": 5, "queue_full": 2, "export_failed": 0}


def test_what_the_collector_refuses_is_counted(collector: Collector) -> None:
    collector.status = 400
    sender = Traces(collector.url + "/own/path")
    sender.offer(history(**ENDED))
    sender.close()
    assert sender.counts == {"exported": 0, "queue_full": 0, "export_failed": 1}
    assert collector.paths == ["/own/path"]


def test_the_standard_variables_name_a_collector_too(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_traces(None) is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    sender = open_traces(None)
    assert sender is not None
    sender.offer(history(**ENDED))
    sender.close()
    collector.wait_for_roots(1)
    assert collector.resources[0]["service.name"] == "mine"
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert open_traces(None) is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert open_traces(collector.url) is None


def test_without_the_packages_the_option_is_refused_and_the_variable_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServeSettings(engine=EngineSettings(model="m"), otlp_endpoint="http://127.0.0.1:4318")
    refuse_missing_packages(settings)

    def missing(_name: str) -> None: ...

    monkeypatch.setattr(traces, "find_spec", missing)
    assert not traces.installed()
    with pytest.raises(Refusal, match=re.escape("pip install '.[otel]'")):
        refuse_missing_packages(settings)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert open_traces(None) is None
    assert "pip install '.[otel]'" in caplog.text
