"""What /metrics says, parsed by Prometheus' own parser, and what the ledger counts: from known reports."""

import os
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from triolet.actors.gateway.accounts import MAX_ADAPTER_LABELS, Accounts
from triolet.actors.observe.metric_aliases import vllm_aliases
from triolet.actors.observe.metrics import ledger_of, render_metrics
from triolet.actors.supervisor.process_facts import open_files
from triolet.actors.supervisor.worker_status import WorkerStatus
from triolet.protocol.reports import AdapterFigures, FrontsReport, Health, ProcessFigures, ServerReport, WorkerFigures
from triolet.protocol.settings import EngineSettings, ServeSettings

from ..scheduler.scheduling import new_state

PROCESS = ProcessFigures(tasks=3, fds=10, rss_bytes=1000, cpu_seconds=1.5)
SETTINGS = ServeSettings(engine=EngineSettings(model="demo"))


class House:
    """What is counted, and the report of it."""

    def __init__(self) -> None:
        self.accounts = Accounts()
        self.worker = WorkerStatus()

    def report(self, **web: object) -> ServerReport:
        worker = self.worker
        report = ServerReport(
            health=Health(ready=True, status="ready", reason=""),
            scheduler=new_state().statistics(),
            worker=WorkerFigures(pid=worker.pid, restarts=worker.restarts, step_time=worker.step_time.figures()),
            process=PROCESS,
            web=FrontsReport(live=2, accounts=self.accounts.figures(), **web),  # type: ignore[arg-type]  # fields of any type
        )
        return msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=ServerReport)  # it may cross a link

    def text(self, settings: ServeSettings = SETTINGS, **web: object) -> str:
        return render_metrics(self.report(**web), settings).decode()


@pytest.fixture
def house() -> House:
    return House()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def families(text: str) -> list[str]:
    return [family.name for family in text_string_to_metric_families(text)]


def test_counts_labels_and_histograms(house: House) -> None:
    accounts = house.accounts
    accounts.accepted = 3
    accounts.finished.update({"stop": 2, "error": 1})
    accounts.refused["server_overloaded"] += 4
    accounts.first_token.observe(0.02)
    accounts.first_token.observe(1000.0)
    house.worker.step_done(1, 0.004, 1.0)
    found = samples(house.text())
    assert found["triolet_ready", ()] == 1
    assert found["triolet_requests_live", ()] == 2
    assert found["triolet_requests_accepted_total", ()] == 3
    assert found["triolet_requests_finished_total", (("reason", "stop"),)] == 2
    assert found["triolet_requests_refused_total", (("code", "server_overloaded"),)] == 4
    assert found["triolet_time_to_first_token_seconds_bucket", (("le", "0.025"),)] == 1
    assert found["triolet_time_to_first_token_seconds_bucket", (("le", "+Inf"),)] == 2
    assert found["triolet_time_to_first_token_seconds_sum", ()] == 1000.02
    assert found["triolet_step_duration_seconds_count", ()] == 1
    assert found["triolet_kv_blocks", (("state", "free"),)] == 0


def test_every_name_is_ours_or_the_processs_and_none_comes_twice(house: House) -> None:
    names = families(house.text())
    assert len(names) == len(set(names))
    assert all(name.startswith(("triolet_", "process_")) for name in names)
    assert {"triolet_requests_running", "triolet_requests_waiting", "triolet_requests_parked"} <= set(names)
    assert {"triolet_preemptions", "triolet_worker_restarts", "triolet_kv_usage_ratio"} <= set(names)
    assert {"process_cpu_seconds", "process_open_fds"} <= set(names)


def test_the_names_of_vllm_on_request(house: House) -> None:
    accounts = house.accounts
    accounts.finished.update({"stop": 2, "tool_calls": 1, "length": 4, "cancelled": 5, "stalled": 6, "error": 7})
    accounts.first_token.observe(0.02)
    text = house.text(msgspec.structs.replace(SETTINGS, metric_aliases="vllm"))
    found = samples(text)
    labels = (("engine", "0"), ("model_name", "demo"))
    reasons = {"stop": 3, "length": 4, "abort": 11, "error": 7}
    for reason, count in reasons.items():
        assert found["vllm:request_success_total", (labels[0], ("finished_reason", reason), labels[1])] == count
    assert found["vllm:time_to_first_token_seconds_count", labels] == 1
    assert found["vllm:num_requests_running", labels] == 0
    assert len(families(text)) == len(set(families(text)))


def test_requests_are_counted_by_adapter_up_to_a_number_of_names(house: House) -> None:
    for number in range(MAX_ADAPTER_LABELS + 2):
        for name in ("law", f"client-{number}", None):
            house.accounts.count_accepted(name)
    found = samples(house.text())
    counts = {
        labels[0][1]: count for (name, labels), count in found.items() if name == "triolet_adapter_requests_total"
    }
    assert (len(counts), counts["law"], counts["others"]) == (MAX_ADAPTER_LABELS + 1, MAX_ADAPTER_LABELS + 2, 3)
    assert found["triolet_requests_accepted_total", ()] == 3 * (MAX_ADAPTER_LABELS + 2)
    assert found["triolet_adapters", (("state", "loaded"),)] == 0


def test_adapters_in_the_worker_have_the_name_of_vllm_too() -> None:
    figures = AdapterFigures(most=4, loaded=2, waiting=1, loads=3, running_names=("law",), waiting_names=("a", "b"))
    statistics = msgspec.structs.replace(new_state().statistics(), adapters=figures)
    (info,) = (one for one in vllm_aliases(Accounts(), statistics, "demo") if one.name == "vllm:lora_requests_info")
    (sample,) = info.samples
    assert sample.labels == {"max_lora": "4", "running_lora_adapters": "law", "waiting_lora_adapters": "a,b"}
    assert all(one.name != info.name for one in vllm_aliases(Accounts(), new_state().statistics(), "demo"))


def test_a_server_of_several_processes_tells_of_each(house: House) -> None:
    house.worker.restarts = 2
    several: dict[str, Any] = {"processes": {"web-0": PROCESS, "web-1": PROCESS}, "silent": 1, "restarts": 4}
    found = samples(house.text(**several))
    assert found["triolet_worker_restarts_total", ()] == 2
    for process in ("scheduler", "web-0", "web-1"):
        assert found["triolet_process_resident_memory_bytes", (("process", process),)] == 1000
    assert found["triolet_web_processes_silent", ()] == 1
    assert found["triolet_web_process_restarts_total", ()] == 4
    ledger = ledger_of(house.report(**several))
    assert (ledger.requests, ledger.tasks, ledger.fds, ledger.rss_bytes, ledger.children) == (2, 9, 30, 3000, 2)


def test_the_ledger_of_one_process_counts_its_worker_as_a_child(house: House) -> None:
    assert ledger_of(house.report()).children == 0
    house.worker.begin(4321, 0.0)
    ledger = ledger_of(house.report())
    assert (ledger.children, ledger.tasks, ledger.fds, ledger.rss_bytes) == (1, 3, 10, 1000)


def test_open_files_are_counted() -> None:
    before = open_files()
    more = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    assert open_files() == before + 3
    for file in more:
        os.close(file)
