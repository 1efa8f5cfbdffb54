import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from triolet.cli.main import main
from triolet.cli.options import (
    BUNDLED_MODEL,
    BUNDLED_NAME,
    FIELDS,
    GROUPS,
    build_settings,
    engine_options,
    serve_options,
)
from triolet.cli.sources import option_name, variable_name
from triolet.loadtest.compare.cases import CASES
from triolet.loadtest.compare.variant import read_variant
from triolet.protocol.settings import AdapterPlaces, EngineSettings, LimitSettings, ModelSettings, ServeSettings


def _serve(*arguments: str) -> tuple[Result, ServeSettings | None]:
    """The settings that `serve` would run with, or how it refuses."""
    settings: list[ServeSettings] = []

    @click.command()
    @serve_options
    def serve(model: str | None, **values: Any) -> None:
        settings.append(build_settings(model, values))

    result = CliRunner().invoke(serve, arguments)
    return result, settings[0] if settings else None


@pytest.fixture(autouse=True)
def _nothing_set_elsewhere(no_settings_elsewhere: None) -> None:
    """No variable and no file of the machine that runs the tests."""


def test_every_setting_is_an_option_and_every_option_a_setting() -> None:
    structs_fields = [
        name for struct in (EngineSettings, LimitSettings, ServeSettings) for name in struct.__struct_fields__
    ]
    assert sorted(FIELDS) == sorted(
        set(structs_fields) - {"engine", "limits", "adapter_places", "key_tables", "models"}
    )
    assert len(structs_fields) == len(set(structs_fields)), "two Structs have a field of one name"
    rows = [name for group in GROUPS.values() for name in group]
    assert sorted(["model", *rows]) == sorted(FIELDS), "a row without a field, or in two groups"


def test_the_defaults_are_the_structs_own() -> None:
    result, settings = _serve()
    assert result.exit_code == 0, result.output
    assert settings == ServeSettings(engine=EngineSettings(model=str(BUNDLED_MODEL)), served_model_name=BUNDLED_NAME)


def test_a_worker_has_room_for_adapters_where_some_are_offered() -> None:
    bounds = ("--max-loras", "3", "--max-lora-rank", "32")
    for offered, count in ((("--lora", "law=here"), 3), (("--lora-folder", "here"), 3), ((), 0)):
        _, settings = _serve(*bounds, *offered)
        assert settings is not None
        assert settings.engine.adapter_places == AdapterPlaces(count=count, rank=32)


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


def test_a_key_that_the_list_of_processes_shows_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, _ = _serve("--operator-key", "one")
    assert "the list of processes shows --operator-key KEY" in shown.stderr
    assert "TRIOLET_OPERATOR_KEY" in shown.stderr
    (tmp_path / "keys").write_text("one")
    (tmp_path / "keys").chmod(0o600)
    monkeypatch.setenv("TRIOLET_OPERATOR_KEY", "two")
    hidden, settings = _serve("--api-key", f"@{tmp_path}/keys")
    assert settings is not None
    assert (settings.api_keys, settings.operator_keys) == (("one",), ("two",))
    assert "Warning" not in hidden.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--port", "65536"), ("--port", "x"), ("--threads", "0"), ("--kv-cache-memory", "lots"), ("--quantize", "int3"),
        ("--kv-cache-dtype", "int4"), ("--threads", "9999"), ("--served-model-name", ""),
        ("--otlp-endpoint", "localhost:4318"), ("--otlp-endpoint", "http://"), ("--metric-aliases", "sglang"),
        ("--root-path", "llm"), ("--root-path", "/a//b"), ("--root-path", "/../b"), ("--root-path", "/v1"),
        ("--root-path", "/a?b"), ("--root-path", "/a b"),
        ("--allow-origin", "localhost:3000"), ("--allow-origin", "null"), ("--allow-origin", "https://app.example/a"),
        ("--allow-origin", "http://app.example:port"), ("--allow-origin", "http://me@app.example"),
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
        ("port = 'x'", "Invalid value for port in"),
        ("port = true", "port must be a plain value"),
        ("inline = 1", "inline must be true or false"),
        ("quantize = 'int3'", "Invalid value for quantize in"),
        ("api-key = 'two words'", "Invalid value for api-key in"),
        ("port = [1]", "port must be a plain value"),
        ("api-key = 5", "api-key must be a string or a list of strings"),
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
            assert option_name(field.name) in (
                field.name.replace("_", "-"),
                field.name.replace("_", "-").removesuffix("s"),
                field.name.removesuffix("es"),
            )


def test_a_variable_holds_what_the_option_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MODEL": "some/model", "MAX_MODEL_LEN": "2048", "API_KEY": "one two", "INLINE": "true", "PORT": "",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"TRIOLET_{name}", value)
    result, settings = _serve()
    assert settings is not None, result.output
    assert settings.engine == EngineSettings(model="some/model", max_model_len=2048)
    assert (settings.api_keys, settings.inline) == (("one", "two"), True)
    assert settings.port == ServeSettings(engine=settings.engine).port  # an empty variable is none


def test_the_command_line_wins_over_a_variable_and_that_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = _config(tmp_path, "port = 1\nmax-requests = 1\nmax-running = 1")
    monkeypatch.setenv("TRIOLET_PORT", "2")
    monkeypatch.setenv("TRIOLET_MAX_REQUESTS", "2")
    _, settings = _serve("--config", config, "--port", "3")
    assert settings is not None
    assert (settings.port, settings.limits.max_requests, settings.engine.max_running) == (3, 2, 1)


def test_every_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that no option takes is refused by the name of its variable."""
    free_text = {
        "model",
        "gguf_file",
        "chat_template",
        "host",
        "data",
        "uds",
        "served_model_name",
        "ssl_certfile",
        "ssl_keyfile",
        "lora_folder",
    }
    for field in set(FIELDS) - free_text:
        with monkeypatch.context() as patch:
            patch.setenv(variable_name(field), "\N{SNOWMAN}")
            result, settings = _serve()
        assert (result.exit_code, settings) == (2, None), field
        assert f"Invalid value for variable {variable_name(field)}:" in result.output


def test_an_unknown_variable_is_named_with_the_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_MAX_MODEL_LENGTH", "5")
    monkeypatch.setenv("TRIOLET_SERVICE_HOST", "10.0.0.1")  # of a Kubernetes service
    result, settings = _serve()
    assert settings is not None
    assert "nothing reads the variable TRIOLET_MAX_MODEL_LENGTH; did you mean TRIOLET_MAX_MODEL_LEN?" in result.output
    assert "SERVICE_HOST" not in result.output


def test_notes_have_the_form_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_PORTS", "5")
    Path("triolet.toml").write_text("max-running = 5")
    command = [sys.executable, "-m", "triolet", "serve", "no/such/model", "--port", "0", "--log-format", "json"]
    said = subprocess.run(command, capture_output=True, text=True).stderr.splitlines()
    notes = [json.loads(line)["message"] for line in said[:2]]
    assert notes == [
        "nothing reads the variable TRIOLET_PORTS; did you mean TRIOLET_PORT?",
        "settings from triolet.toml",
    ]
    assert said[2].startswith("Error: no folder no/such/model")


def test_a_kubernetes_service_link_is_not_taken_for_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_PORT", "tcp://10.0.0.1:80")
    result, _ = _serve()
    assert result.exit_code == 2
    assert "enableServiceLinks" in result.output


def test_the_first_default_file_is_read_and_said(tmp_path: Path) -> None:
    home = tmp_path / "config" / "triolet" / "triolet.toml"
    home.parent.mkdir(parents=True)
    home.write_text("port = 1\nthreads = 1")
    result, settings = _serve()
    assert settings is not None
    assert (settings.port, settings.engine.threads) == (1, 1)
    assert f"Note: settings from {home}" in result.output
    Path("triolet.toml").write_text("port = 2")
    result, settings = _serve()
    assert settings is not None
    assert (settings.port, settings.engine.threads) == (2, None)
    assert "Note: settings from triolet.toml" in result.output
    _, settings = _serve("--config", str(home))
    assert settings is not None
    assert settings.port == 1


def test_a_file_for_the_server_serves_other_commands_too() -> None:
    Path("triolet.toml").write_text("port = 1\nthreads = 1")
    engines: list[EngineSettings] = []

    @click.command()
    @engine_options
    def load(model: str | None, **values: Any) -> None:
        engines.append(build_settings(model, values).engine)

    result = CliRunner().invoke(load)
    assert result.exit_code == 0, result.output
    assert engines[0].threads == 1


def test_a_server_s_keys_and_port_mean_nothing_to_a_command_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as `triolet chat`, whose own --api-key is another one."""
    Path("triolet.toml").write_text('api-key = ["@keys"]\nport = 1')
    monkeypatch.setenv("TRIOLET_PORT", "tcp://10.0.0.1:80")
    given: list[object] = []

    @click.command()
    @engine_options
    @click.option("--api-key")
    def ask(model: Path | None, api_key: str | None, **values: Any) -> None:
        given.append(api_key)

    result = CliRunner().invoke(ask)
    assert (result.exit_code, given) == (0, [None]), result.output


def test_runs_that_are_compared_take_nothing_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_QUANTIZE", "int8")
    Path("triolet.toml").write_text("threads = 1")
    variant = read_variant("plain=", None, None, tuple(CASES.values()))
    assert (variant.settings.quantize, variant.settings.threads) == ("none", None)


def test_a_refusal_says_where_the_option_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_HOST", "0.0.0.0")
    result = CliRunner().invoke(main, ["serve"])
    assert result.exit_code == 2
    assert result.output.endswith("(--host is from variable TRIOLET_HOST)\n")


def test_several_models_are_words_a_variable_or_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = (ModelSettings(name="a", path="folder/a"), ModelSettings(name="b", path="c=d"))
    words = ("a=folder/a", "b=c=d")
    _, settings = _serve(*words)
    assert settings is not None
    assert (settings.models, settings.engine.model) == (expected, "folder/a")
    Path("triolet.toml").write_text('[models]\na = "folder/a"\nb = "c=d"')
    _, from_file = _serve()
    assert from_file == settings
    _, other = _serve("path/with=sign")
    assert other is not None
    assert (other.models, other.engine.model) == ((), "path/with=sign")
    monkeypatch.setenv("TRIOLET_MODEL", " ".join(words))
    assert _serve()[1] == settings
    monkeypatch.setenv("TRIOLET_MODEL", "one folder/with spaces")
    _, single = _serve()
    assert single is not None
    assert single.engine.model == "one folder/with spaces"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("a=x", "y"), "of several models each has a name, as in a=y"),
        (("x", "y"), "of several models each has a name, as in a=x"),
        (("a=x", "a=y"), "two models have the name a"),
        (("a:b=x", "c=y"), "a name has no colon"),
    ],
)
def test_models_that_cannot_be_told_apart_are_refused(words: tuple[str, ...], problem: str) -> None:
    result, settings = _serve(*words)
    assert (result.exit_code, settings) == (2, None)
    assert problem in result.output


@pytest.mark.parametrize(
    "text", ["[models]", "models = 5", 'models = ["a=b"]', "[models]\na = 5", "[models.a]\nb = 'c'"]
)
def test_a_table_of_models_that_is_none_is_refused(text: str) -> None:
    Path("triolet.toml").write_text(text)
    result, _ = _serve()
    assert result.exit_code == 2
    assert "models must be a table of folders by name" in result.output
