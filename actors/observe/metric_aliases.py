"""The metrics under vLLM's names (`--metric-aliases vllm`), for dashboards and alerts that were written for vLLM.

Names, labels and meanings are those of vLLM's engine metrics. The histogram buckets are ours, with which
`histogram_quantile` works as well. `gpu_cache_usage_perc`, `gpu_prefix_cache_*` and `time_per_output_token_seconds` are
vLLM's older names.
"""

from collections import Counter
from collections.abc import Iterator
from time import time
from typing import Final

from prometheus_client.core import Metric

from ...protocol.reports import SchedulerStatistics
from ..gateway.accounts import Accounts
from .metric_families import counter, counters, gauge, histogram

# Our reasons to vLLM's, which counts every request that was ended from outside as an abort.
_REASONS: Final = {"stop": "stop", "tool_calls": "stop", "length": "length", "error": "error"}


def vllm_aliases(accounts: Accounts, scheduler: SchedulerStatistics, model: str) -> Iterator[Metric]:
    """All vLLM metrics, from the same counters as our own."""
    labels = {"model_name": model, "engine": "0"}
    blocks, totals = scheduler.blocks, scheduler.totals
    yield gauge("vllm:num_requests_running", "triolet_requests_running", scheduler.running, labels)
    waiting = scheduler.waiting + scheduler.parked
    yield gauge("vllm:num_requests_waiting", "triolet_requests_waiting and _parked", waiting, labels)
    for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
        yield gauge(f"vllm:{name}", "triolet_kv_usage_ratio", blocks.owned / max(1, blocks.total), labels)
    for name in ("prefix_cache", "gpu_prefix_cache"):
        yield counter(f"vllm:{name}_queries", "triolet_prefix_query_tokens", totals.prefix_query_tokens, labels)
        yield counter(f"vllm:{name}_hits", "triolet_prefix_hit_tokens", totals.prefix_hit_tokens, labels)
    yield counter("vllm:num_preemptions", "triolet_preemptions", totals.preemptions, labels)
    yield counter("vllm:prompt_tokens", "Prompt tokens of choices that have started", totals.prompt_tokens, labels)
    yield counter("vllm:generation_tokens", "triolet_generation_tokens", totals.generated_tokens, labels)
    adapters = scheduler.adapters
    if adapters.running_names or adapters.waiting_names or adapters.loads:
        names = {
            "max_lora": str(adapters.most),
            "running_lora_adapters": ",".join(adapters.running_names),
            "waiting_lora_adapters": ",".join(adapters.waiting_names),
        }
        yield gauge("vllm:lora_requests_info", "When this was so; triolet_adapter_…", time(), names)
    ended: Counter[str] = Counter(dict.fromkeys(("stop", "length", "abort", "error"), 0))
    for reason, count in accounts.finished.items():
        ended[_REASONS.get(reason, "abort")] += count
    yield counters("vllm:request_success", "triolet_requests_finished", "finished_reason", ended, labels)
    for name, ours, measured in (
        ("time_to_first_token_seconds", "time_to_first_token_seconds", accounts.first_token),
        ("inter_token_latency_seconds", "inter_token_latency_seconds", accounts.between_tokens),
        ("time_per_output_token_seconds", "inter_token_latency_seconds", accounts.between_tokens),
        ("e2e_request_latency_seconds", "request_duration_seconds", accounts.request_time),
        ("request_queue_time_seconds", "request_queue_seconds", accounts.queue_time),
        ("request_prefill_time_seconds", "request_prefill_seconds", accounts.prefill_time),
        ("request_decode_time_seconds", "request_decode_seconds", accounts.decode_time),
        ("request_prompt_tokens", "request_prompt_tokens", accounts.prompt_length),
        ("request_generation_tokens", "request_generation_tokens", accounts.answer_length),
    ):
        yield histogram(f"vllm:{name}", f"triolet_{ours}", measured, labels)
