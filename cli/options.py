"""The settings tree as options, declared once for all commands: `--max-model-len` is `EngineSettings.max_model_len`.

Defaults are those of the Structs. A config file uses the same names, and its values pass the same checks; the command
line overrides it. A test compares this table with the fields of `protocol.settings`.
"""

import difflib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, get_args

import click
from msgspec import Struct, structs

from ..protocol.settings import EngineSettings, LimitSettings, ServeSettings
from .values import HTTP_URL, SHARE_OR_SIZE, SIZE, read_api_keys

BUNDLED_NAME: Final = "triolet-demo"  # in the API; its folder is called `checkpoint`
BUNDLED_MODEL: Final = Path(__file__).resolve().parent.parent / "models" / "demo" / "checkpoint"

_Command = TypeVar("_Command", bound=Callable[..., object])
_Values = dict[str, Any]  # Any: click has checked each value against its option's type


class Setting(NamedTuple):
    """One field's click type (None: the field's literals, or a flag) and its help text."""

    type: click.ParamType[Any] | None
    help: str


_COUNT: Final = click.IntRange(min=1)
_SECONDS: Final = click.FloatRange(min=0)
_PERIOD: Final = click.FloatRange(min=0, min_open=True)

ENGINE: Final[dict[str, Setting]] = {
    "device": Setting(None, "Where the model runs; auto takes a GPU where one is usable."),
    "kernels": Setting(None, "How the GPU's kernels run; interpret needs no GPU and is very slow, for debugging."),
    "dtype": Setting(None, "Precision of weights and activations; auto is the checkpoint's own, bfloat16 on a GPU."),
    "quantize": Setting(None, "Quantise the weights while loading. CPU: int8, int4, int4-128. GPU: int8, int4, fp8."),
    "kv_cache_dtype": Setting(None, "Precision of the KV cache; int8 halves it, on a GPU fp8 too."),
    "max_model_len": Setting(_COUNT, "Longest prompt and answer together, in tokens.  [default: the model's]"),
    "max_running": Setting(_COUNT, "Sequences in one step."),
    "max_step_tokens": Setting(_COUNT, "Tokens in one step; longer prompts are split."),
    "kv_cache_memory": Setting(SIZE, "Memory of the KV cache, as 2GiB.  [default: a share of what is free]"),
    "gpu_memory": Setting(SHARE_OR_SIZE, "GPU memory to take, as 0.9 or 20GiB.  [default: most of what is free]"),
    "threads": Setting(_COUNT, "Threads of the CPU kernels.  [default: the physical cores]"),
}
SERVER: Final[dict[str, Setting]] = {
    "host": Setting(click.STRING, "Address to listen on. Others than this machine's own need --api-key."),
    "port": Setting(click.IntRange(0, 65535), "Port to listen on; 0 takes a free one."),
    "uds": Setting(click.STRING, "Listen on a Unix socket at this path instead, for this user alone."),
    "ssl_certfile": Setting(
        click.STRING, "Speak TLS, with this certificate and its chain (PEM); read again on SIGHUP."
    ),
    "ssl_keyfile": Setting(click.STRING, "The certificate's key (PEM).  [default: in the same file]"),
    "served_model_name": Setting(click.STRING, "Name of the model in the API.  [default: the folder's name]"),
    "api_keys": Setting(click.STRING, "Ask clients for KEY, or for a key in @FILE (one a line). May be repeated."),
    "drain_timeout": Setting(_SECONDS, "Seconds that running answers get at shutdown."),
    "stall_timeout": Setting(_PERIOD, "Seconds without reading after which a client's answer is ended."),
    "send_timeout": Setting(_PERIOD, "Seconds one send to a client may wait."),
    "keep_alive_interval": Setting(_PERIOD, "Seconds of silence after which a stream gets a comment."),
    "web_processes": Setting(_COUNT, "Processes for HTTP and text, sharing the port; for thousands of streams."),
    "otlp_endpoint": Setting(HTTP_URL, "Send traces to this OpenTelemetry collector, as http://127.0.0.1:4318."),
    "metric_aliases": Setting(None, "Show metrics under the names of vLLM too, for its dashboards."),
    "inline": Setting(None, "Run the model in the server's own process, for debugging."),
}
LIMITS: Final[dict[str, Setting]] = {
    "max_requests": Setting(_COUNT, "Unfinished requests; more are answered 429."),
    "max_choices": Setting(_COUNT, "Choices of one request: its prompts times n."),
    "max_body_bytes": Setting(SIZE, "Largest body of a request, as 4MiB."),
    "max_stop_strings": Setting(_COUNT, "Stop strings of one request."),
    "max_stop_length": Setting(_COUNT, "Characters of one stop string."),
    "outbox_tokens": Setting(_COUNT, "Tokens an answer may be ahead of its reader."),
    "max_socket_requests": Setting(_COUNT, "Unfinished requests of one WebSocket."),
}


def option_name(field: str) -> str:
    """`max_model_len` -> `max-model-len`; a repeatable option has a singular name."""
    return "api-key" if field == "api_keys" else field.replace("_", "-")


def _option(field: structs.FieldInfo, setting: Setting) -> click.Option:
    default = None if field.default in (None, ()) else field.default
    is_flag = field.type is bool
    return click.Option(
        [f"--{option_name(field.name)}", field.name],
        type=click.Choice(get_args(field.type)) if setting.type is None and not is_flag else setting.type,
        default=default,
        is_flag=is_flag,
        multiple=field.name == "api_keys",
        show_default=default is not None and not is_flag,
        help=setting.help,
    )


def _load_config(ctx: click.Context, _option: click.Parameter, path: Path | None) -> None:
    """Make the file's values the command's defaults: click checks them like values on the command line."""
    if path is None:
        return
    try:
        table: _Values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="'--config'") from error
    known = {
        "model" if isinstance(parameter, click.Argument) else parameter.opts[0].removeprefix("--"): parameter
        for parameter in ctx.command.params
        if parameter.name not in ("config", "help")
    }
    defaults: _Values = {}
    for key, value in table.items():
        parameter = known.get(key)
        if parameter is None:
            near = difflib.get_close_matches(key, known, n=1)
            remedy = f"; did you mean {near[0]}?" if near else f". Known keys: {', '.join(sorted(known))}"
            raise click.BadParameter(f"{path}: unknown key {key!r}{remedy}", param_hint="'--config'")
        flag = isinstance(parameter, click.Option) and parameter.is_flag
        if isinstance(value, dict) or isinstance(value, bool) is not flag:
            wanted = "true or false" if flag else "a plain value"
            raise click.BadParameter(f"{path}: {key} must be {wanted}, not {value!r}", param_hint="'--config'")
        defaults[parameter.name] = [value] if parameter.multiple and isinstance(value, str) else value
    ctx.default_map = {**(ctx.default_map or {}), **defaults}


def _options(struct: type[Struct], table: dict[str, Setting]) -> list[click.Parameter]:
    fields = {field.name: field for field in structs.fields(struct)}
    return [_option(fields[name], setting) for name, setting in table.items()]


def _decorate(command: _Command, parameters: list[click.Parameter]) -> _Command:
    """Add parameters and --config to a command, before those of the decorators below."""
    config = click.Option(
        ["--config"],
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        callback=_load_config,
        is_eager=True,
        expose_value=False,
        help="TOML file with these options as keys, such as max-model-len = 2048.",
    )
    # The list that click's own decorators fill, from the last parameter to the first.
    below: list[click.Parameter] = getattr(command, "__click_params__", [])
    setattr(command, "__click_params__", [*below, *reversed([*parameters, config])])  # noqa: B010  # not declared
    return command


def _model_argument() -> click.Parameter:
    return click.Argument(["model"], required=False, type=click.Path(path_type=Path))


def engine_options(command: _Command) -> _Command:
    """MODEL and the options for loading it."""
    return _decorate(command, [_model_argument(), *_options(EngineSettings, ENGINE)])


def prompt_options(command: _Command) -> _Command:
    """The same for a command whose argument is a prompt: the model is an option."""
    model = click.Option(
        ["--model"], type=click.Path(path_type=Path), help="A checkpoint folder.  [default: the bundled model]"
    )
    return _decorate(command, [model, *_options(EngineSettings, ENGINE)])


def serve_options(command: _Command) -> _Command:
    """MODEL and every option of the settings tree."""
    tables = ((ServeSettings, SERVER), (EngineSettings, ENGINE), (LimitSettings, LIMITS))
    return _decorate(command, [_model_argument(), *(option for row in tables for option in _options(*row))])


def build_settings(model: Path | None, values: _Values) -> ServeSettings:
    """The settings tree from checked option values; options not given keep the Struct's default."""
    given = {name: value for name, value in values.items() if value is not None}
    if "api_keys" in given:
        given["api_keys"] = read_api_keys(tuple(given["api_keys"]))
    if model is None:
        given.setdefault("served_model_name", BUNDLED_NAME)
    engine = {name: given.pop(name) for name in ENGINE if name in given}
    limits = {name: given.pop(name) for name in LIMITS if name in given}
    return ServeSettings(
        engine=EngineSettings(model=str(model or BUNDLED_MODEL), **engine), limits=LimitSettings(**limits), **given
    )
