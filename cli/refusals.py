"""Refusals before anything starts or loads: one plain sentence with the remedy, exit code 2."""

import ipaddress
import platform
import socket
from contextlib import closing
from pathlib import Path
from typing import Final

import click
from msgspec import structs

from ..models.errors import LoadError
from ..models.hub.names import hub_name, local_model
from ..protocol.settings import EngineSettings, ServeSettings, model_name
from .inheritance import address_of, inheritance
from .sources import add_note, from_elsewhere

MACHINES: Final = ("x86_64", "aarch64")
MAX_UNIX_PATH: Final = 107  # sockaddr_un has 108 bytes, one of them for the end
_DEFAULTS: Final = ServeSettings(engine=EngineSettings(model=""))


class Refusal(click.ClickException):
    """Triolet refuses to start with these options. Adds where an option came from that the message names."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(message + from_elsewhere(message))


def refuse_platform() -> None:
    """Refuse to run a model elsewhere than on Linux, x86-64 or AArch64, for which the kernels are written."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in MACHINES:
        raise Refusal(
            f"Triolet's kernels run on Linux, x86-64 or AArch64, and this is {system} {machine}: use such a machine, "
            "or a container of Linux; `triolet chat --url URL` reaches a server from here"
        )


def refuse_missing_model(engine: EngineSettings) -> None:
    """Refuse a model that cannot run here, and a path without one. The worker checks the content of its files."""
    refuse_platform()
    if hub_name(engine.model) is None:
        local_path(engine)


def local_path(engine: EngineSettings) -> str:
    """The folder, or the .gguf file, of an engine whose model is a path. Raises Refusal."""
    try:
        return str(local_model(engine.model, engine.gguf_file))
    except LoadError as error:
        raise Refusal(str(error)) from error


def refuse_open_server(settings: ServeSettings) -> None:
    """Refuse to serve other machines without a key: anybody who reaches the port could use the model."""
    if settings.key_digests:
        return
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        raise Refusal(f"--host {settings.host}: {error}") from error
    # A link-local IPv6 address has its interface after a percent sign.
    if not all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found):
        raise Refusal(
            f"--host {settings.host} lets other machines in: add --api-key KEY (or @FILE), or keep --host 127.0.0.1"
        )


def refuse_taken_port(host: str, port: int) -> None:
    """Refuse a port that something listens on, before a model is loaded for nothing."""
    if port == 0:
        return
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with closing(socket.socket(family, kind, protocol)) as probe:
            # As in the server, so that a port whose last connections are still closing counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind(address)
            except OSError as error:
                raise Refusal(f"cannot listen on {host} port {port}: {error.strerror}; take another --port") from error


def refuse_used_socket(path: str) -> None:
    """Refuse a path that another server listens on, that is not a socket, or where no socket can be made."""
    if len(path.encode()) > MAX_UNIX_PATH:
        raise Refusal(f"--uds {path} is longer than the {MAX_UNIX_PATH} bytes that a Unix socket's path may have")
    folder = Path(path).parent
    if not folder.is_dir():
        raise Refusal(f"cannot listen on --uds {path}: there is no folder {folder}; make it, or take another path")
    from ..web.transport.listening import unix_socket  # trio, which help must not wait for

    try:
        with unix_socket(path):  # permissions do not say everything, so it is made and removed again
            pass
    except OSError as error:
        raise Refusal(f"cannot listen on --uds {path}: {error.strerror}; take another path") from error


def refuse_address(settings: ServeSettings) -> None:
    """Refuse addresses that cannot be listened on, and two kinds of address at once."""
    inherited = inheritance()
    if inherited is not None and address_of(settings) != inherited.address:
        raise Refusal(f"an upgrade keeps the address {inherited.address}: restart the server to change it")
    if settings.uds is None:
        refuse_open_server(settings)
        if inherited is None:
            refuse_taken_port(settings.host, settings.port)
        return
    given = (settings.host, settings.port) != (_DEFAULTS.host, _DEFAULTS.port)
    for option, clashes in (("--host and --port", given), ("--ssl-certfile", settings.ssl_certfile is not None)):
        if clashes:
            raise Refusal(f"--uds listens on a file of this machine alone: leave {option} out")
    if inherited is None:
        refuse_used_socket(settings.uds)


def refuse_certificate(settings: ServeSettings) -> None:
    """Refuse files that are not a certificate and its key."""
    if settings.ssl_certfile is None:
        if settings.ssl_keyfile is not None:
            raise Refusal("--ssl-keyfile needs the certificate it belongs to: add --ssl-certfile FILE")
        return
    from ..web.transport.tls import CertificateError, load_context  # the ssl module, which few servers need

    try:
        load_context(settings.ssl_certfile, settings.ssl_keyfile)
    except CertificateError as error:
        raise Refusal(f"--ssl-certfile: {error}") from error


def refuse_missing_packages(settings: ServeSettings) -> None:
    """Refuse an option whose packages are not installed."""
    if settings.otlp_endpoint is None:
        return
    from ..actors.observe.traces import INSTALL, installed  # trio, as above

    if not installed():
        raise Refusal(f"--otlp-endpoint needs OpenTelemetry's packages: {INSTALL}")


def refuse_too_many_processes(settings: ServeSettings) -> None:
    """Refuse so many web processes that one would get no place for requests: the places are divided among them."""
    if settings.web_processes > settings.limits.max_requests:
        raise Refusal(
            f"--web-processes {settings.web_processes} divide --max-requests {settings.limits.max_requests}: "
            "each needs at least one"
        )


def refuse_undivided_limits(settings: ServeSettings) -> None:
    """Refuse limits of keys of which a process would get nothing: they are divided too (actors/fronts/division.py)."""
    fronts = settings.web_processes
    if fronts == 1:
        return
    for key in settings.key_tables:
        for field, parts in (
            ("requests_per_minute", fronts),
            ("concurrent", fronts),
            ("tokens_per_minute", fronts + 1),
        ):
            limit: int | None = getattr(key, field)
            if limit is not None and limit < parts:
                raise Refusal(
                    f"{field} = {limit} of the key {key.name or key.sha256} is divided into {parts} parts with "
                    f"--web-processes {fronts}: raise it to {parts}, or take fewer processes"
                )


def refuse_adapters(settings: ServeSettings) -> None:
    """Refuse LoRA adapters that are no folders of PEFT, and names that are taken. The worker checks the rest."""
    seen = {model_name(settings)}
    for text in settings.loras:
        name, _, path = text.partition("=")
        if name in seen:
            raise Refusal(f"--lora {text}: the name {name} is taken; take another one")
        if not (Path(path) / "adapter_config.json").is_file():
            raise Refusal(f"--lora {text}: {path} has no adapter_config.json; name the folder of a PEFT adapter")
        seen.add(name)
    if settings.lora_folder is not None and not Path(settings.lora_folder).is_dir():
        raise Refusal(f"--lora-folder {settings.lora_folder}: there is no such folder; make it, or take another one")


def refuse_models(settings: ServeSettings) -> None:
    """Refuse what cannot run of the model, or of several, and what a server of several cannot do."""
    if not settings.models:
        refuse_missing_model(settings.engine)
        if settings.memory is not None:
            raise Refusal("--memory is divided among several models, NAME=MODEL; for one give --kv-cache-memory")
        if settings.aliases:
            raise Refusal("--alias needs models with names, as in `triolet serve qwen=path/to/model --alias chat=qwen`")
        return
    for model in settings.models:
        refuse_missing_model(structs.replace(settings.engine, model=model.path))
    names = {model.name for model in settings.models}
    for text in settings.aliases:
        alias, _, aim = text.partition("=")
        if alias in names:
            raise Refusal(f"--alias {text}: {alias} is the name of a model; take another one")
        if aim not in names:
            raise Refusal(f"--alias {text}: there is no model {aim}, but {', '.join(sorted(names))}")
    for option, given in (
        ("--web-processes", settings.web_processes > 1),
        ("--inline", settings.inline),
        ("--lora", settings.loras),
        ("--lora-folder", settings.lora_folder),
        ("--served-model-name", settings.served_model_name),
    ):
        if given:
            raise Refusal(f"{option} is for a server of one model: leave it out, or serve one as MODEL, without a name")


def warn_of_open_pages(settings: ServeSettings) -> None:
    """Without a key, every page that a browser on this machine opens could use the model."""
    if "*" in settings.allow_origins and not settings.key_digests:
        add_note("--allow-origin '*' without --api-key lets every web page use this server")


def refuse_early(settings: ServeSettings) -> None:
    """Make every refusal that is possible without loading the model."""
    refuse_models(settings)
    refuse_address(settings)
    refuse_certificate(settings)
    refuse_missing_packages(settings)
    refuse_too_many_processes(settings)
    refuse_undivided_limits(settings)
    refuse_adapters(settings)
