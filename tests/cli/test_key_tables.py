"""`[[keys]]` of a settings file: what they become, what is refused, and a server that keeps to them."""

import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
import httpx
import openai
import pytest
from click.testing import CliRunner
from openai import OpenAI

from triolet.cli.key_tables import read_key_tables
from triolet.cli.main import main
from triolet.cli.options import build_settings, serve_options
from triolet.cli.refusals import Refusal, refuse_open_server, refuse_undivided_limits
from triolet.protocol.settings import EngineSettings, KeySettings, ServeSettings

from ..conftest import running_server
from ..e2e.test_batches import create, end_of, lines

FILE = Path("triolet.toml")
HASH = sha256(b"alices-key").hexdigest()
ALICE = f"""
[[keys]]
name = "alice"
sha256 = "{HASH.upper()}"
requests_per_minute = 60
tokens_per_minute = 20000
concurrent = 8
kv_tokens = 8192
weight = 2
"""
OTHER = f'[[keys]]\nsha256 = "{"0" * 64}"\n'


def _serve(path: Path, *arguments: str) -> ServeSettings:
    settings: list[ServeSettings] = []

    @click.command()
    @serve_options
    def serve(model: str | None, **values: Any) -> None:  # Any: click's values
        settings.append(build_settings(model, values))

    result = CliRunner().invoke(serve, ["--config", str(path), *arguments])
    assert result.exit_code == 0, result.output
    return settings[0]


def test_tables_are_keys_beside_the_options(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text(ALICE + OTHER)
    settings = _serve(path, "--api-key", "bobs-key", "--api-key", "alices-key")
    alice = KeySettings(
        name="alice",
        sha256=HASH,
        requests_per_minute=60,
        tokens_per_minute=20_000,
        concurrent=8,
        kv_tokens=8192,
        weight=2,
    )
    assert settings.key_tables == (alice, KeySettings(sha256="0" * 64))
    assert settings.key_digests == (sha256(b"bobs-key").hexdigest(), HASH, "0" * 64)  # alice's once


def test_other_commands_read_a_file_with_tables_and_config_prints_them(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text(f"port = 9000\n{ALICE}{OTHER}")
    result = CliRunner().invoke(main, ["config", "--config", str(path)])
    assert result.exit_code == 0, result.output
    again = tmp_path / "again.toml"
    again.write_text(result.stdout)
    assert tomllib.loads(result.stdout)["port"] == 9000
    assert _serve(again) == _serve(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[keys]]\nname = 'alice'", "key alice: sha256 must be the SHA-256 of the key, 64 hex digits; `printf"),
        ("[[keys]]\nsha256 = 'alices-key'", "key 1: sha256 must be the SHA-256"),
        (f"{ALICE}[[keys]]\nname = 'bob'\nsha256 = '{HASH}'", "key bob has the sha256 of alice: leave one"),
        (f"{ALICE}[[keys]]\nname = 'alice'\nsha256 = '{'1' * 64}'", "key alice: another key has this name"),
        (f"{ALICE}tokens_per_min = 5", "key alice: unknown field 'tokens_per_min'; did you mean tokens_per_minute?"),
        (f"{ALICE}zzz = 5", "key alice: unknown field 'zzz'; known are sha256, name"),
        (f"{OTHER}concurrent = 0", "key 1: concurrent: expected `int` >= 1"),
        (f"{OTHER}requests_per_minute = '9'", "key 1: requests_per_minute: expected `int | null`"),
        (f"{OTHER}kv_tokens = 63", "key 1: kv_tokens: expected `int` >= 64"),
        (f"{OTHER}weight = 0", "key 1: weight: expected `float` >= 0.01"),
        (f"{OTHER}name = 'two words'", "key two words: name must be one word"),
        ("keys = 'secret'", "keys must be tables: write [[keys]]"),
        ("[keys]\nalice = 1", "keys must be tables: write [[keys]]"),
    ],
)
def test_a_wrong_table_is_refused_by_its_keys_name(text: str, said: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        read_key_tables(FILE, tomllib.loads(text)["keys"])
    assert f"{FILE}: {said}" in caught.value.message


def _settings(**fields: Any) -> ServeSettings:  # Any: those of ServeSettings
    return ServeSettings(engine=EngineSettings(model=""), **fields)


def test_a_table_opens_the_server_to_other_machines_as_a_key_does() -> None:
    with pytest.raises(Refusal, match="add --api-key"):
        refuse_open_server(_settings(host="0.0.0.0"))
    refuse_open_server(_settings(host="0.0.0.0", key_tables=(KeySettings(sha256=HASH),)))


@pytest.mark.parametrize(
    ("field", "least"), [("requests_per_minute", 3), ("concurrent", 3), ("tokens_per_minute", 4), ("", 0)]
)
def test_a_limit_that_cannot_be_divided_is_refused(field: str, least: int) -> None:
    def key(limit: int) -> tuple[KeySettings]:
        return (KeySettings(sha256=HASH, name="alice", **{field: limit} if field else {}),)

    refuse_undivided_limits(_settings(web_processes=3, key_tables=key(least)))
    refuse_undivided_limits(_settings(web_processes=1, key_tables=key(least - 1)))
    if field:
        with pytest.raises(Refusal, match=f"{field} = {least - 1} of the key alice .* raise it to {least}"):
            refuse_undivided_limits(_settings(web_processes=3, key_tables=key(least - 1)))


def test_a_server_keeps_to_the_limits_and_counts_the_lines_of_batches(tmp_path: Path) -> None:
    config = tmp_path / FILE
    config.write_text(
        f'[[keys]]\nname = "alice"\nsha256 = "{HASH}"\nrequests_per_minute = 2\ntokens_per_minute = 200\nweight = 3\n'
    )
    options = ("--config", str(config), "--api-key", "bobs-key", "--data", str(tmp_path / "data"))
    question: dict[str, Any] = {"prompt": "One, two", "max_tokens": 3}  # Any: JSON
    with running_server(tmp_path / "log", *options) as server:
        address = f"{server.url}/v1"
        with (
            OpenAI(base_url=address, api_key="alices-key", max_retries=0) as alice,
            OpenAI(base_url=address, api_key="bobs-key", max_retries=0) as bob,
        ):
            model = alice.models.list().data[0].id
            for left in ("1", "0"):
                asked = alice.completions.with_raw_response.create(model=model, prompt="One, two", max_tokens=3)
                assert asked.headers["x-ratelimit-remaining-requests"] == left
            with pytest.raises(openai.RateLimitError, match="alice may use 2 requests a minute") as caught:
                alice.completions.create(model=model, **question)
            assert 20 < int(caught.value.response.headers["retry-after"]) <= 30
            batch = create(alice, lines(1, ignore_eos=True, max_tokens=500))  # lines are no requests
            assert end_of(server, alice, batch.id).status == "completed"
            with pytest.raises(openai.RateLimitError, match="alice may use 200 tokens a minute"):
                alice.completions.create(model=model, **question)
            for _ in range(4):
                bob.completions.create(model=model, **question)
        metrics = httpx.get(f"{server.url}/metrics", headers={"Authorization": "Bearer bobs-key"}).text
    assert 'triolet_key_requests_refused_total{key="alice"} 2.0' in metrics
    assert 'triolet_key_tokens_total{key="alice"}' in metrics
    log = (tmp_path / "log").read_text()
    assert log.count(" key=alice") == 3  # two requests and a line
    assert "alices-key" not in log
