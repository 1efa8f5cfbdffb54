from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from triolet.cli.options import (
    BUNDLED_MODEL,
    BUNDLED_NAME,
    ENGINE,
    LIMITS,
    SERVER,
    build_settings,
    option_name,
    serve_options,
)
from triolet.protocol.settings import EngineSettings, LimitSettings, ServeSettings


def _serve(*arguments: str) -> tuple[Result, ServeSettings | None]:
    """The settings that `serve` would run with, or how it refuses."""
    settings: list[ServeSettings] = []

    @click.command()
    @serve_options
    def serve(model: Path | None, **values: Any) -> None:
        settings.append(build_settings(model, values))

    result = CliRunner().invoke(serve, arguments)
    return result, settings[0] if settings else None


def test_every_setting_is_an_option_and_every_option_a_setting() -> None:
    assert list(ENGINE) == [name for name in EngineSettings.__struct_fields__ if name != "model"]
    assert set(LIMITS) == set(LimitSettings.__struct_fields__)
    assert set(SERVER) == set(ServeSettings.__struct_fields__) - {"engine", "limits"}


def test_serve_has_at_most_forty_options() -> None:
    assert len(ENGINE) + len(LIMITS) + len(SERVER) + 1 <= 40


def test_the_defaults_are_the_structs_own() -> None:
    result, settings = _serve()
    assert result.exit_code == 0, result.output
    assert settings == ServeSettings(engine=EngineSettings(model=str(BUNDLED_MODEL)), served_model_name=BUNDLED_NAME)


def test_options_reach_their_struct() -> None:
    _, settings = _serve(
        "some/model", "--port", "9000", "--quantize", "fp8", "--kv-cache-dtype", "int8", "--max-model-len", "2048",
        "--kv-cache-memory", "2GiB", "--max-body-bytes", "1MiB", "--api-key", "one", "--api-key", "two",
        "--drain-timeout", "1.5", "--inline",
    )  # fmt: skip
    assert settings is not None
    assert settings.engine == EngineSettings(
        model="some/model", quantize="fp8", kv_cache_dtype="int8", max_model_len=2048, kv_cache_memory=2 << 30
    )
    assert settings.limits.max_body_bytes == 1 << 20
    assert (settings.port, settings.api_keys) == (9000, ("one", "two"))
    assert (settings.drain_timeout, settings.inline) == (1.5, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--port", "65536"), ("--port", "x"), ("--threads", "0"), ("--kv-cache-memory", "lots"), ("--quantize", "int3"),
        ("--kv-cache-dtype", "int4"),
        ("--otlp-endpoint", "localhost:4318"), ("--otlp-endpoint", "http://"), ("--metric-aliases", "sglang"),
        ("--device", "tpu"), ("--drain-timeout", "-1"), ("--stall-timeout", "0"), ("--max-running", "0"),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused_naming_the_option(arguments: tuple[str, str]) -> None:
    result, settings = _serve(*arguments)
    assert (result.exit_code, settings) == (2, None)
    assert arguments[0] in result.output


def _config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "triolet.toml"
    path.write_text(text)
    return str(path)


def test_a_config_file_holds_the_same_names(tmp_path: Path) -> None:
    config = _config(
        tmp_path,
        'model = "some/model"\nport = 9000\nmax-model-len = 2048\nkv-cache-memory = "2GiB"\n'
        'api-key = ["one", "two"]\ninline = true\ndrain-timeout = 2\n',
    )
    result, settings = _serve("--config", config)
    assert settings is not None, result.output
    assert settings.engine == EngineSettings(model="some/model", max_model_len=2048, kv_cache_memory=2 << 30)
    assert (settings.port, settings.api_keys, settings.inline) == (9000, ("one", "two"), True)


def test_the_command_line_wins_over_the_config_file(tmp_path: Path) -> None:
    _, settings = _serve("--config", _config(tmp_path, 'port = 9000\napi-key = "only"\n'), "--port", "9001")
    assert settings is not None
    assert (settings.port, settings.api_keys) == (9001, ("only",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-model-length = 5", "unknown key 'max-model-length'; did you mean max-model-len?"),
        ("max_running = 5", "unknown key 'max_running'; did you mean max-running?"),
        ("zzz = 5", "Known keys:"),
        ("config = 'other.toml'", "unknown key 'config'"),
        ("port = 'x'", "--port"),
        ("port = true", "port must be a plain value"),
        ("inline = 1", "inline must be true or false"),
        ("quantize = 'int3'", "--quantize"),
        ("[engine]\nthreads = 1", "unknown key 'engine'"),
        ("port = ", "Invalid value"),
    ],
)
def test_a_wrong_config_file_is_refused_naming_the_key(tmp_path: Path, text: str, said: str) -> None:
    result, settings = _serve("--config", _config(tmp_path, text))
    assert (result.exit_code, settings) == (2, None)
    assert said in " ".join(result.output.split())


def test_a_missing_config_file_is_refused(tmp_path: Path) -> None:
    result, _ = _serve("--config", str(tmp_path / "none.toml"))
    assert result.exit_code == 2


def test_option_names_are_the_field_names_with_dashes() -> None:
    for struct in (EngineSettings, LimitSettings, ServeSettings):
        for field in structs.fields(struct):
            assert option_name(field.name) in (field.name.replace("_", "-"), "api-key")
