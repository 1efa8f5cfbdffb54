from triolet.loadtest.device.cpu_compare import medians, ratios, table


def _row(turn: int, engine: str, precision: str, decode: float) -> dict[str, object]:
    return {
        "turn": turn,
        "engine": engine,
        "precision": precision,
        "prefill_tok_s": 1000.0,
        "decode_tok_s_b1": decode,
        "decode_tok_s_b16": 10 * decode,
    }


ROWS = [
    row
    for turn, (ours, theirs) in enumerate(((150.0, 100.0), (90.0, 45.0), (160.0, 160.0)))
    for row in (
        _row(turn, "triolet", "bfloat16", ours / 2),
        _row(turn, "triolet", "int8", ours),
        _row(turn, "llama.cpp", "q8", theirs),
        _row(turn, "llama.cpp", "q4", 2 * theirs),
        _row(turn, "llama.cpp", "bf16", theirs / 2),
    )
]


def test_medians_are_per_engine_and_precision() -> None:
    found = {(row["engine"], row["precision"]): row["decode_tok_s_b1"] for row in medians(ROWS)}
    assert found[("triolet", "int8")] == 150.0
    assert found[("llama.cpp", "q8")] == 100.0
    assert len(found) == 5


def test_ratios_are_taken_within_a_turn_and_at_the_same_bits() -> None:
    """Turn 2 met a machine half as fast: a ratio of medians would mix turns, the median of ratios does not."""
    found = {row["peer"]: row for row in ratios(ROWS)}
    assert set(found) == {"llama.cpp q8", "llama.cpp bf16"}
    assert found["llama.cpp q8"]["ours"] == "int8"
    assert found["llama.cpp q8"]["decode_tok_s_b1"] == {"median": 1.5, "lowest": 1.0, "highest": 2.0}


def test_the_page_shows_every_engine_and_ratio() -> None:
    result = {
        "name": "125m", "date": "2026-01-02", "peer_about": "llama.cpp", "command": "command", "threads": 2, "turns": 3,
        "machine": {"cpu": "C", "instructions": ["avx2"], "cores": 2, "memory_gib": 8, "system": "Linux"},
        "versions": {"python": "3.11"}, "load_averages": [0.1], "medians": medians(ROWS), "ratios": ratios(ROWS),
    }  # fmt: skip
    page = table(result)
    assert "| llama.cpp | q4 | 1,000.0 | 200.0 | 2,000.0 |" in page
    assert "| int8 | llama.cpp q8 | 1.00 (1.00 to 1.00) | 1.50 (1.00 to 2.00) |" in page
