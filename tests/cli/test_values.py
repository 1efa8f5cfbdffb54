from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.cli.values import (
    CLIENT_KEY,
    ORIGIN,
    ROOT_PATH,
    SERVER_URL,
    SHARE_OR_SIZE,
    format_size,
    parse_size,
    read_api_keys,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096), ("2GiB", 2 << 30), ("2 gib", 2 << 30), ("2G", 2 << 30), ("512MiB", 512 << 20),
        ("1.5KiB", 1536), ("3GB", 3_000_000_000), (" 7 B ", 7), ("1TiB", 1 << 40),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("more", ["", "/", "/v1", "/v1/"])
def test_a_servers_address_may_be_that_of_its_api(more: str) -> None:
    assert SERVER_URL.convert(f"http://h:80/llm{more}", None, None) == "http://h:80/llm"
    with pytest.raises(click.BadParameter, match=r"such as http://127\.0\.0\.1:8000"):
        SERVER_URL.convert(f"h:80{more}", None, None)


def test_root_paths_have_no_slash_at_their_end() -> None:
    written = {"/llm": "/llm", "/our/llm-1.0/": "/our/llm-1.0", "/": "", "": "", "/.well": "/.well"}
    assert {text: ROOT_PATH.convert(text, None, None) for text in written} == written


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("http://localhost:3000", "http://localhost:3000"), ("HTTPS://App.Example:443/", "https://app.example"),
        ("http://[::1]:80", "http://[::1]"), ("http://app.example:443", "http://app.example:443"),
        ("chrome-extension://abcd", "chrome-extension://abcd"), ("*", "*"),
    ],
)  # fmt: skip
def test_origins_are_written_as_browsers_send_them(text: str, origin: str) -> None:
    assert ORIGIN.convert(text, None, None) == origin


@pytest.mark.parametrize("text", ["", "GiB", "2 bananas", "-1GiB", "1e9", "2GiBs", "0x10", "nan", "inf"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@given(st.integers(1, 1 << 50))
def test_a_formatted_size_reads_back_to_three_digits(size: int) -> None:
    # Two decimals below 10, one below 100: the rounding error is at most half of the last digit, 0.5 %. Reading cuts a
    # fraction of a byte.
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0, abs=0.005 * size + 1)


@pytest.mark.parametrize(
    ("text", "value"), [("0.9", 0.9), (".5", 0.5), ("1", 1.0), (0.25, 0.25), ("20GiB", 20.0 * 2**30), ("1.5k", 1536.0)]
)
def test_shares_and_sizes(text: str, value: float) -> None:
    assert SHARE_OR_SIZE.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("text", "message"), [("0", "a share above 0"), ("1.5", "a share above 0"), (".", "not a size")]
)
def test_what_is_neither_a_share_nor_a_size(text: str, message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        SHARE_OR_SIZE.convert(text, None, None)


def test_a_file_of_keys_that_everybody_can_read_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    file.write_text("alpha\n")
    file.chmod(0o600)
    read_api_keys((f"@{file}",))
    assert capsys.readouterr().err == ""
    file.chmod(0o644)
    read_api_keys((f"@{file}",))
    assert f"chmod 600 {file}" in capsys.readouterr().err


def test_api_keys_come_from_values_and_files(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("# ours\nalpha\n\n  beta  \n")
    assert read_api_keys(("first", f"@{file}")) == ("first", "alpha", "beta")


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "a\tb", "a\n"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(click.BadParameter, match="visible ASCII"):
        read_api_keys((key,))


def test_a_key_file_must_hold_a_key(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("# none yet\n")
    with pytest.raises(click.BadParameter, match="holds no key"):
        read_api_keys((f"@{empty}",))
    with pytest.raises(click.BadParameter, match="cannot read"):
        read_api_keys((f"@{tmp_path / 'missing'}",))


def test_a_client_sends_the_one_key_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("# mine\nalpha\n")
    assert CLIENT_KEY.convert(f"@{file}", None, None) == "alpha"
    assert CLIENT_KEY.convert("beta", None, None) == "beta"
    file.write_text("alpha\nbeta\n")
    with pytest.raises(click.BadParameter, match="holds 2 keys, and a client sends one"):
        CLIENT_KEY.convert(f"@{file}", None, None)
