"""The figures of a flood beside a tenant are those of its rounds."""

from triolet.loadtest.tenants import TenantPhase, figures, quantile


def test_a_quantile_is_the_nearest_rank() -> None:
    values = [float(number) for number in range(40, 0, -1)]
    assert [quantile(values, share) for share in (0.0, 0.5, 0.95, 1.0)] == [1, 20, 38, 40]


def test_ratios_are_to_the_same_quantile_alone() -> None:
    rates = {"prompt_tokens": 1.0, "generation_tokens": 2.0}
    phases = {"solo": 0.010, "streams": 0.015, "prompts": 0.040}
    found = figures([{name: TenantPhase(first=[seconds], rates=rates) for name, seconds in phases.items()}] * 3)
    assert found["solo"]["requests"] == 3
    assert round(found["streams"]["ttft_p95_to_solo"], 6) == 1.5
    assert round(found["prompts"]["ttft_p50_to_solo"], 6) == 4
