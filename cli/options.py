"""The settings tree as options, declared once for all commands: `--max-model-len` is `EngineSettings.max_model_len`.

To add an option, add a field to a Struct in `protocol/settings.py` and a row to its group here: the row gives the
option, the variable, the key in a file, its place in the help and its line in docs/configuration.md. The defaults are
those of the Structs.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource
from msgspec import Struct, structs

from ..models.hub.names import hub_name
from ..protocol.settings import AdapterPlaces, EngineSettings, LimitSettings, ServeSettings
from .model_argument import GivenModel, ModelsArgument
from .sources import (
    CONFIG_VARIABLE,
    KEYS,
    ModelArgument,
    SettingOption,
    add_note,
    check_variables,
    key_tables,
    option_name,
    origin,
    read_file,
    tell_notes,
    variable_name,
)
from .values import ADAPTER, ALIAS, COLLECTOR_URL, NAME, ORIGIN, ROOT_PATH, SHARE_OR_SIZE, SIZE, read_api_keys

BUNDLED_NAME: Final = "triolet-demo"  # in the API; its folder is called `checkpoint`
BUNDLED_MODEL: Final = Path(__file__).resolve().parent.parent / "models" / "demo" / "checkpoint"

_Command = TypeVar("_Command", bound=Callable[..., object])
_Values = dict[str, Any]  # Any: click has checked each value against its option's type


class Setting(NamedTuple):
    """One field's click type (None: the field's literals, or a flag) and its help text."""

    type: click.ParamType[Any] | None
    help: str


_COUNT: Final = click.IntRange(min=1)
# With more threads than CPUs, those that run spin while they wait for those that do not.
_CPUS: Final = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_THREADS: Final = click.IntRange(1, _CPUS)
_SECONDS: Final = click.FloatRange(min=0)
_PERIOD: Final = click.FloatRange(min=0, min_open=True)

GROUPS: Final[dict[str, dict[str, Setting]]] = {
    "Server": {
        "host": Setting(click.STRING, "Address to listen on. Others than this machine's own need --api-key."),
        "port": Setting(click.IntRange(0, 65535), "Port to listen on; 0 takes a free one."),
        "root_path": Setting(ROOT_PATH, "Path under which a proxy shows the server, as /llm."),
        "uds": Setting(click.STRING, "Listen on a Unix socket at this path instead, for this user alone."),
        "aliases": Setting(ALIAS, "Give a model another name too, as chat=NAME. May be repeated."),
        "served_model_name": Setting(NAME, "Name of the model in the API.  [default: ORG/NAME, or the folder's]"),
        "loras": Setting(ADAPTER, "Offer a LoRA adapter, a folder in PEFT's format, as legal=DIR. May be repeated."),
        "web_processes": Setting(_COUNT, "Processes for HTTP and text, sharing the port; for thousands of streams."),
        "data": Setting(
            click.STRING,
            "Folder of files, batches, responses and usage records; with it, a response is stored unless its request "
            "says not to.  [default: ~/.local/state/triolet]",
        ),
        "usage_days": Setting(
            click.IntRange(min=0),
            "Days that usage records are kept, one of each request; 0: none.  [default: 90 with --data, else 0]",
        ),
        "drain_timeout": Setting(_SECONDS, "Seconds that running answers get at shutdown."),
        "upgrade_timeout": Setting(
            _SECONDS, "Seconds that running answers get when a new server takes over (triolet upgrade)."
        ),
    },
    "Security": {
        "api_keys": Setting(
            click.STRING,
            "Ask clients for KEY, or for a key in @FILE (one a line). May be repeated. "
            "Keys with limits are tables of --config's file: [[keys]].",
        ),
        "operator_keys": Setting(
            click.STRING, "Ask for KEY, or a key in @FILE, at /metrics, /internal/* and the dashboard instead."
        ),
        "allow_origins": Setting(
            ORIGIN, "Let pages of this origin use the server, as http://localhost:3000; * for all. May be repeated."
        ),
        "lora_folder": Setting(
            click.STRING, "Let clients with an operator key, if there are any, load adapters from this folder."
        ),
        "ssl_certfile": Setting(
            click.STRING, "Speak TLS, with this certificate and its chain (PEM); read again on SIGHUP."
        ),
        "ssl_keyfile": Setting(click.STRING, "The certificate's key (PEM).  [default: in the same file]"),
    },
    "Model and memory": {
        "gguf_file": Setting(
            click.STRING, "Which GGUF file of a repository or folder: its name, or a part of it as Q4_K_M."
        ),
        "chat_template": Setting(
            click.STRING,
            "One of the model's chat templates by its name, or a file with one.  "
            "[default: default; with tools tool_use, if there is one]",
        ),
        "device": Setting(None, "Where the model runs; auto takes a GPU where one is usable."),
        "dtype": Setting(
            None, "Precision of weights and activations; auto is the checkpoint's own, bfloat16 on a GPU."
        ),
        "quantize": Setting(
            None,
            "Quantise the weights while loading. CPU: int8, int4, int4-128. GPU: int8, int4; with 8-bit activations "
            "too: w8a8, fp8, fp8-block.",
        ),
        "kv_cache_dtype": Setting(None, "Precision of the KV cache; int8 halves it, on a GPU fp8 too."),
        "max_model_len": Setting(
            _COUNT, "Longest prompt and answer together, in tokens.  [default: the model's, or what fits]"
        ),
        "max_running": Setting(_COUNT, "Sequences in one step.  [default: 64; on a GPU up to 256, by its memory]"),
        "max_step_tokens": Setting(
            _COUNT, "Tokens in one step; longer prompts are split.  [default: 512; on a GPU up to 2048, by its memory]"
        ),
        "kv_cache_memory": Setting(SIZE, "Memory of the KV cache, as 2GiB.  [default: a share of what is free]"),
        "gpu_memory": Setting(SHARE_OR_SIZE, "GPU memory to take, as 0.9 or 20GiB.  [default: most of what is free]"),
        "memory": Setting(
            SIZE,
            "Memory of several models together, as 12GiB; those that do not fit are loaded when a request names them.",
        ),
        "keep_packed_weights": Setting(
            None,
            "Keep the packed weights in ~/.cache/triolet: the next start does not pack them (CPU).",
        ),
        "threads": Setting(_THREADS, "Threads of the CPU kernels.  [default: the physical cores]"),
    },
    "Limits": {
        "max_requests": Setting(_COUNT, "Unfinished requests; more are answered 429."),
        "max_choices": Setting(_COUNT, "Choices of one request: its prompts times n."),
        "max_body_bytes": Setting(SIZE, "Largest body of a request, as 4MiB."),
        "max_stop_strings": Setting(_COUNT, "Stop strings of one request."),
        "max_stop_length": Setting(_COUNT, "Characters of one stop string."),
        "max_loras": Setting(
            _COUNT, "LoRA adapters in memory at once; the least recently used one leaves for another."
        ),
        "max_lora_rank": Setting(
            click.IntRange(1, 256), "Largest rank of a LoRA adapter on a GPU, which keeps room for that many of it."
        ),
        "max_socket_requests": Setting(_COUNT, "Unfinished requests of one WebSocket."),
        "max_resume_seconds": Setting(
            _SECONDS, "Longest wait of an answer for a client that lost its connection; 0: none waits."
        ),
        "resume_memory": Setting(SIZE, "Memory for the answers that wait so, as 64MiB."),
        "batch_storage": Setting(SIZE, "Disk space of all files and results of batches, as 1GiB."),
        "response_storage": Setting(SIZE, "Disk space of all stored responses, as 256MiB; 0: none is stored."),
        "outbox_tokens": Setting(_COUNT, "Tokens an answer may be ahead of its reader."),
        "stall_timeout": Setting(_PERIOD, "Seconds without reading after which a client's answer is ended."),
        "hang_timeout": Setting(
            _PERIOD,
            "Seconds without progress until a step's worker is replaced, if no such step or load took longer.",
        ),
        "send_timeout": Setting(_PERIOD, "Seconds one send to a client may wait."),
        "keep_alive_timeout": Setting(_PERIOD, "Seconds that a connection stays open between two requests."),
        "keep_alive_interval": Setting(_PERIOD, "Seconds of silence in an answer before its stream gets a comment."),
    },
    "Logging and traces": {
        "log_level": Setting(None, "Log from this level on; info has a line for each request."),
        "log_format": Setting(None, "Lines of text, or JSON objects with the same facts as fields."),
        "access_log": Setting(None, "Log a line for each HTTP exchange too: status, milliseconds, id, tokens."),
        "otlp_endpoint": Setting(
            COLLECTOR_URL, "Send traces to this OpenTelemetry collector, as http://127.0.0.1:4318."
        ),
        "metric_aliases": Setting(None, "Show metrics under the names of vLLM too, for its dashboards."),
    },
    "Debugging": {
        "inline": Setting(None, "Run the model in the server's own process, for debugging."),
        "no_jump_ahead": Setting(
            None, "Compute every token of an answer with a grammar, also those that it forces; to compare."
        ),
        "kernels": Setting(None, "How the GPU's kernels run; interpret needs no GPU and is very slow, for debugging."),
    },
}


NOT_WITH_A_TERMINAL: Final = ("log_level", "log_format")  # of commands that print for a person and log nothing


def settings_rows(*owners: type[Struct]) -> list[tuple[str, structs.FieldInfo, Setting]]:
    """Group, field and row of every option whose field is in one of these Structs, in the order of the help."""
    fields = {field.name: field for owner in owners for field in structs.fields(owner)}
    return [
        (group, fields[name], row) for group, rows in GROUPS.items() for name, row in rows.items() if name in fields
    ]


ALL: Final = (ServeSettings, EngineSettings, LimitSettings)
FIELDS: Final = ("model", *(field.name for _, field, _ in settings_rows(*ALL)))  # what a file and variables may say


def _option(group: str, field: structs.FieldInfo, setting: Setting) -> click.Option:
    default = None if field.default in (None, (), "") else field.default
    is_flag = field.type is bool
    kind = setting.type
    return SettingOption(
        field.name,
        group=group,
        type=click.Choice(get_args(field.type)) if kind is None and not is_flag else kind,
        metavar="N" if isinstance(kind, click.IntRange) else "SECONDS" if isinstance(kind, click.FloatRange) else None,
        default=default,
        is_flag=is_flag,
        multiple=get_origin(field.type) is tuple,
        show_default=default is not None and not is_flag,
        help=setting.help,
    )


def _read_elsewhere(ctx: click.Context, _option: click.Parameter, path: Path | None) -> None:
    """--config comes first, so the file's values are there before any option is looked at."""
    if not ctx.resilient_parsing:  # the shell completes a word
        check_variables(ctx, FIELDS)
        read_file(ctx, path, FIELDS)


def _add_to(command: _Command, parameters: list[click.Parameter]) -> _Command:
    """Add parameters to a command, before those of the decorators below."""
    # The list that click's own decorators fill, from the last parameter to the first.
    below: list[click.Parameter] = getattr(command, "__click_params__", [])
    setattr(command, "__click_params__", [*below, *reversed(parameters)])  # noqa: B010  # not declared
    return command


def _config() -> click.Parameter:
    return click.Option(
        ["--config"],
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar=CONFIG_VARIABLE,
        callback=_read_elsewhere,
        is_eager=True,
        expose_value=False,
        help="TOML file with these options as keys, such as max-model-len = 2048.  "
        "[default: ./triolet.toml, else ~/.config/triolet/triolet.toml]",
    )


def _options(*owners: type[Struct]) -> list[click.Parameter]:
    return [_option(*row) for row in settings_rows(*owners)]


def _engine() -> list[click.Parameter]:
    return [option for option in _options(EngineSettings) if option.name not in NOT_WITH_A_TERMINAL]


def engine_options(command: _Command) -> _Command:
    """MODEL and the options for loading it."""
    return _add_to(command, [ModelArgument(), *_engine(), _config()])


def plan_options(command: _Command) -> _Command:
    """What of the engine's options changes a plan; the machine has an option of the command's own."""
    planned = ("gguf_file", "dtype", "quantize", "kv_cache_dtype", "max_model_len", "max_running", "max_step_tokens")
    memory = ("kv_cache_memory", "gpu_memory", "threads")
    return _add_to(command, [option for option in _engine() if option.name in (*planned, *memory)])


def typed_engine_options(command: _Command) -> _Command:
    """The same, from the command line alone, for runs that are compared: no variable and no file may change them."""
    parameters = [ModelArgument(), *_engine()]
    for parameter in parameters:
        parameter.envvar = None
    return _add_to(command, parameters)


def prompt_options(command: _Command) -> _Command:
    """The same for a command whose argument is a prompt: the model is an option."""
    model = click.Option(
        ["--model"],
        type=click.Path(),
        envvar=variable_name("model"),
        help="A folder, a .gguf file, or a name on the hub.  [default: the bundled model]",
    )
    return _add_to(command, [model, *_engine(), _config()])


def data_option(command: _Command) -> _Command:
    """The data folder, and where else it may be said."""
    return _add_to(command, [*[option for option in _options(ServeSettings) if option.name == "data"], _config()])


def serve_options(command: _Command) -> _Command:
    """MODEL and every option of the settings tree."""
    return _add_to(command, [ModelsArgument(), *_options(*ALL), _config()])


def _keys(name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    option, ctx = f"--{option_name(name)}", click.get_current_context(silent=True)
    typed = ctx is not None and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    if typed and not all(value.startswith("@") for value in values):
        add_note(
            f"the list of processes shows {option} KEY to every user of this machine; "
            f"use {option} @FILE or the variable {variable_name(name)}"
        )
    return read_api_keys(values, (ctx is not None and origin(ctx, name)) or f"'{option}'")


def build_settings(model: GivenModel, values: _Values) -> ServeSettings:
    """The settings tree from checked option values; options not given keep the Struct's default."""
    given = {name: value for name, value in values.items() if value is not None}
    for name in KEYS & given.keys():
        given[name] = _keys(name, tuple(given[name]))
    if isinstance(model, tuple):
        given["models"], model = model, model[0].path
    elif model is None:
        given.setdefault("served_model_name", BUNDLED_NAME)
    elif (named := hub_name(model)) is not None:
        given.setdefault("served_model_name", named.repo)
    engine = {name: given.pop(name) for name in EngineSettings.__struct_fields__ if name in given}
    limits = {name: given.pop(name) for name in LimitSettings.__struct_fields__ if name in given}
    bounds = LimitSettings(**limits)
    offered = given.get("loras") or given.get("lora_folder")
    places = AdapterPlaces(count=bounds.max_loras if offered else 0, rank=bounds.max_lora_rank)
    settings = ServeSettings(
        engine=EngineSettings(model=model or str(BUNDLED_MODEL), adapter_places=places, **engine),
        limits=bounds,
        key_tables=key_tables(),
        **given,
    )
    tell_notes(settings.engine)
    return settings
