"""What /metrics says: parsed by Prometheus' own parser, from known counts."""

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from triolet.actors.gateway.accounts import Accounts
from triolet.actors.observe.metrics import Metrics
from triolet.actors.supervisor.worker_status import WorkerStatus
from triolet.protocol.steps import Ready

from ..scheduler.scheduling import new_state


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def house(make_ready: Callable[[], Ready]) -> tuple[Accounts, WorkerStatus, Metrics]:
    accounts, worker, state = Accounts(), WorkerStatus(), new_state()
    worker.set_ready(make_ready(), 0.0)
    metrics = Metrics(
        accounts=accounts,
        gateway=lambda: accounts.statistics(live=2),
        scheduler=state.statistics,
        worker=worker,
        healthy=lambda: True,
    )
    return accounts, worker, metrics


def test_counts_labels_and_histograms(house: tuple[Accounts, WorkerStatus, Metrics]) -> None:
    accounts, worker, metrics = house
    accounts.accepted = 3
    accounts.finished.update({"stop": 2, "error": 1})
    accounts.refused["server_overloaded"] += 4
    accounts.first_token.observe(0.02)
    accounts.first_token.observe(1000.0)
    worker.step_done(1, 0.004, 1.0)
    found = samples(metrics.render().decode())
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


def test_every_name_is_ours_or_the_processs_and_none_comes_twice(
    house: tuple[Accounts, WorkerStatus, Metrics],
) -> None:
    families = [family.name for family in text_string_to_metric_families(house[2].render().decode())]
    assert len(families) == len(set(families))
    assert all(name.startswith(("triolet_", "process_")) for name in families)
    assert {"triolet_requests_running", "triolet_requests_waiting", "triolet_requests_parked"} <= set(families)
    assert {"triolet_preemptions", "triolet_worker_restarts", "triolet_kv_usage_ratio"} <= set(families)


def test_the_names_of_vllm_on_request(house: tuple[Accounts, WorkerStatus, Metrics]) -> None:
    accounts, worker, _ = house
    accounts.finished.update({"stop": 2, "tool_calls": 1, "length": 4, "cancelled": 5, "stalled": 6, "error": 7})
    accounts.first_token.observe(0.02)
    metrics = Metrics(
        accounts=accounts,
        gateway=lambda: accounts.statistics(live=2),
        scheduler=new_state().statistics,
        worker=worker,
        healthy=lambda: True,
        vllm_model="demo",
    )
    found = samples(metrics.render().decode())
    labels = (("engine", "0"), ("model_name", "demo"))
    reasons = {"stop": 3, "length": 4, "abort": 11, "error": 7}
    for reason, count in reasons.items():
        assert found["vllm:request_success_total", (labels[0], ("finished_reason", reason), labels[1])] == count
    assert found["vllm:time_to_first_token_seconds_count", labels] == 1
    assert found["vllm:num_requests_running", labels] == 0
    families = [family.name for family in text_string_to_metric_families(metrics.render().decode())]
    assert len(families) == len(set(families))
