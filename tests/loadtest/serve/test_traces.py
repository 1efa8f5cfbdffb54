from pathlib import Path

import pytest

from triolet.loadtest.serve.traces import BadTrace, TracedRequest, parse_trace, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:17:01.0000000,12,0
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,230,1317,API log
40,GPT-4,10,0,10,API log
"""


def test_azure_s_traces_are_read_to_the_fraction_of_a_second() -> None:
    trace = parse_trace(AZURE.splitlines(), "azure.csv")
    assert (trace.layout, trace.left_out) == ("Azure", 1)
    first, second = trace.requests
    assert first == TracedRequest(0.0, 374, 44)
    assert (second.prompt_tokens, second.output_tokens) == (396, 109)
    assert second.time == pytest.approx(4.314579, abs=1e-6)


def test_burstgpt_s_traces_are_read_and_ordered() -> None:
    trace = parse_trace(BURST.splitlines(), "burst.csv")
    assert trace.layout == "BurstGPT"
    assert trace.requests == (TracedRequest(0.0, 472, 18), TracedRequest(40.5, 1087, 230))
    assert trace.left_out == 1  # an answer of 0 tokens is one that failed there
    assert len(parse_trace(BURST.splitlines(), "burst.csv", limit=1).requests) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 must name the columns"),
        ("a,b\n1,2\n", "line 1 must name the columns"),
        (AZURE + "soon,1,2\n", "line 5 is not a time"),
        (AZURE + "2023-11-16 18:15:46\n", "line 5 is not a time"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
    ],
)
def test_what_is_no_trace_is_refused_by_line(text: str, message: str) -> None:
    with pytest.raises(BadTrace, match=message):
        parse_trace(text.splitlines(), "x.csv")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"none\.csv"):
        read_trace(tmp_path / "none.csv")
