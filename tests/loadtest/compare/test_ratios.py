from triolet.loadtest.compare.ratios import (
    Measured,
    against_best,
    against_each,
    best_against_best,
    medians,
    reading_shares,
)


def _row(turn: int, engine: str, bits: int, value: float, case: str = "decode") -> Measured:
    ours = engine.startswith("our")
    return Measured(turn=turn, engine=engine, ours=ours, bits=bits, case=case, value=value)


# Per turn: our 8 bits, our 4 bits, a peer's 8 and 4 bits. Turn 1 met a machine half as fast.
TURNS = ((150.0, 240.0, 100.0, 120.0), (90.0, 100.0, 45.0, 50.0), (160.0, 200.0, 160.0, 80.0))
ENGINES = (("our 8", 8), ("our 4", 4), ("q8", 8), ("q4", 4))
ROWS = [
    _row(turn, engine, bits, value)
    for turn, values in enumerate(TURNS)
    for (engine, bits), value in zip(ENGINES, values, strict=True)
]


def test_medians_are_per_engine_and_case() -> None:
    found = {row.engine: (row.lowest, row.median, row.highest) for row in medians(ROWS)}
    assert found["our 8"] == (90.0, 150.0, 160.0)
    assert found["q4"] == (50.0, 80.0, 120.0)


def test_a_ratio_is_of_one_turn_and_against_the_best_of_as_many_bits_or_fewer() -> None:
    eight, four = against_best(ROWS)
    assert eight.turns == (150 / 120, 90 / 50, 1.0)  # a 4-bit peer was the better one twice
    assert (eight.median, eight.lowest, eight.highest, eight.theirs) == (1.25, 1.0, 1.8, "q4")
    assert four.turns == (2.0, 2.0, 2.5)  # the 8-bit peer does not count, though it won turn 2


def test_each_peer_of_the_same_bits() -> None:
    assert {(ratio.ours, ratio.theirs): ratio.turns for ratio in against_each(ROWS)} == {
        ("our 8", "q8"): (1.5, 2.0, 1.0),
        ("our 4", "q4"): (2.0, 2.0, 2.5),
    }


def test_the_best_against_the_best_may_change_sides_between_turns() -> None:
    (ratio,) = best_against_best(ROWS)
    assert ratio.turns == (2.0, 2.0, 200 / 160)
    assert (ratio.ours, ratio.theirs) == ("our 4", "q4")


def test_without_a_peer_there_is_no_ratio() -> None:
    ours = [row for row in ROWS if row.ours]
    assert against_best(ours) == against_each(ours) == best_against_best(ours) == []
    only_wider = [*ours, _row(0, "bf16", 16, 50.0)]
    assert against_best(only_wider) == []


def test_a_case_that_a_peer_did_not_run_is_left_out() -> None:
    ratios = against_best([*ROWS, _row(0, "our 8", 8, 1000.0, case="prefill")])
    assert {ratio.case for ratio in ratios} == {"decode"}


def test_a_share_of_reading_is_of_the_turn_s_own_speed() -> None:
    (share,) = reading_shares(ROWS, {"our 8": 2.0}, (400.0, 200.0, 320.0))
    assert (share.engine, share.lowest, share.median, share.highest) == ("our 8", 0.75, 0.9, 1.0)
