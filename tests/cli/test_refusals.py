import platform
import re
import socket
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner
from msgspec import structs

from triolet.cli.main import main
from triolet.cli.memory_needs import parts_of
from triolet.cli.options import BUNDLED_MODEL
from triolet.cli.refusals import (
    Refusal,
    refuse_adapters,
    refuse_address,
    refuse_certificate,
    refuse_missing_model,
    refuse_open_server,
    refuse_taken_port,
    refuse_too_many_processes,
    refuse_used_socket,
    warn_of_open_pages,
)
from triolet.protocol.settings import EngineSettings, LimitSettings, ModelSettings, ServeSettings

ENGINE = EngineSettings(model=str(BUNDLED_MODEL))


def test_a_model_that_is_no_checkpoint_folder_is_refused(tmp_path: Path) -> None:
    for name, content in (("model.safetensors", f"in, {tmp_path}"), ("x", "is a file")):
        (tmp_path / name).touch()
        with pytest.raises(Refusal, match=re.escape(content)):
            refuse_missing_model(EngineSettings(model=str(tmp_path / name)))
    with pytest.raises(Refusal, match=r"no folder .*none, and no file: MODEL is a folder"):
        refuse_missing_model(EngineSettings(model=str(tmp_path / "none")))
    refuse_missing_model(EngineSettings(model="Qwen/Qwen3-0.6B"))  # a name: only the hub knows
    with pytest.raises(Refusal, match=re.escape("has no config.json")):
        refuse_missing_model(EngineSettings(model=str(tmp_path)))
    snapshot = tmp_path / "snapshots" / "3f2a"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    with pytest.raises(Refusal, match=f"pass {snapshot}"):
        refuse_missing_model(EngineSettings(model=str(tmp_path)))


def test_a_server_that_every_page_may_use_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    for origins, keys in (((), ()), (("https://app.example",), ()), (("*",), ("secret",))):
        warn_of_open_pages(ServeSettings(engine=ENGINE, allow_origins=origins, api_keys=keys))
    assert capsys.readouterr().err == ""
    warn_of_open_pages(ServeSettings(engine=ENGINE, allow_origins=("*",)))
    assert "--api-key" in capsys.readouterr().err


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "riscv64")])
def test_a_platform_without_kernels_is_refused(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    for command in ("serve", "chat", "complete Hello", "bench offline"):
        result = CliRunner().invoke(main, command.split())
        assert result.exit_code == 2
        assert f"run on Linux, x86-64 or AArch64, and this is {system} {machine}" in result.output


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_are_let_in_only_with_a_key(host: str) -> None:
    with pytest.raises(Refusal, match="--api-key"):
        refuse_open_server(ServeSettings(engine=ENGINE, host=host))
    refuse_open_server(ServeSettings(engine=ENGINE, host=host, api_keys=("secret",)))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_this_machine_needs_no_key(host: str) -> None:
    refuse_open_server(ServeSettings(engine=ENGINE, host=host))


def test_a_host_without_an_address_is_refused() -> None:
    with pytest.raises(Refusal, match="--host"):
        refuse_open_server(ServeSettings(engine=ENGINE, host="no host of that name"))


def test_a_taken_port_is_refused_and_a_free_one_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Refusal, match=f"port {port}"):
            refuse_taken_port("127.0.0.1", port)
    refuse_taken_port("127.0.0.1", port)
    refuse_taken_port("127.0.0.1", 0)


def test_a_refusal_is_a_usage_error() -> None:
    assert Refusal("no").exit_code == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"port": 9000}, "leave --host and --port out"),
        ({"host": "0.0.0.0"}, "leave --host and --port out"),
        ({"ssl_certfile": "cert.pem"}, "leave --ssl-certfile out"),
        ({"uds": "x" * 108}, "107 bytes"),
        ({"uds": __file__}, "no socket"),
    ],
)
def test_a_unix_socket_is_listened_on_alone_and_where_it_can_be(settings: dict[str, object], said: str) -> None:
    with pytest.raises(Refusal, match=said):
        refuse_address(ServeSettings(engine=ENGINE, **({"uds": "some.sock"} | settings)))  # type: ignore[arg-type]  # of any type


def test_a_unix_socket_needs_no_key(tmp_path: Path) -> None:
    refuse_address(ServeSettings(engine=ENGINE, uds=str(tmp_path / "some.sock")))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ssl_keyfile": "key.pem"}, "add --ssl-certfile"),
        ({"ssl_certfile": "no/such.pem"}, "no/such.pem: No such file"),
        ({"ssl_certfile": __file__}, "test_refusals.py"),
    ],
)
def test_files_that_are_no_certificate_are_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(Refusal, match=said):
        refuse_certificate(ServeSettings(engine=ENGINE, **settings))  # type: ignore[arg-type]  # of any type


def test_every_web_process_has_a_place_for_a_request() -> None:
    limits = LimitSettings(max_requests=2)
    refuse_too_many_processes(ServeSettings(engine=ENGINE, limits=limits, web_processes=2))
    with pytest.raises(Refusal, match="--max-requests 2"):
        refuse_too_many_processes(ServeSettings(engine=ENGINE, limits=limits, web_processes=3))


def test_a_unix_socket_needs_a_folder_that_takes_it(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=f"there is no folder {tmp_path / 'none'}; make it"):
        refuse_used_socket(str(tmp_path / "none" / "some.sock"))
    with pytest.raises(Refusal, match="take another path"):
        refuse_used_socket("/proc/some.sock")
    with pytest.raises(Refusal, match="take another path"):
        refuse_used_socket("")
    refuse_used_socket(str(tmp_path / "some.sock"))
    assert not list(tmp_path.iterdir())  # the check leaves nothing


def test_adapters_are_folders_of_peft_with_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").touch()
    good = f"law={tmp_path}"
    refuse_adapters(ServeSettings(engine=ENGINE, loras=(good, f"prose={tmp_path}"), lora_folder=str(tmp_path)))
    for loras, folder, said in (
        ((good, good), None, "the name law is taken"),
        ((f"{BUNDLED_MODEL.name}={tmp_path}",), None, "is taken"),
        (("law=nowhere",), None, "nowhere has no adapter_config.json"),
        ((), str(tmp_path / "none"), "there is no such folder"),
    ):
        with pytest.raises(Refusal, match=said):
            refuse_adapters(ServeSettings(engine=ENGINE, loras=loras, lora_folder=folder))
    for text in ("law", "=x", "a:b=x", "latest=x"):
        result = CliRunner().invoke(main, ["serve", "--lora", text])
        assert (result.exit_code, "is not NAME=PATH" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("a={m} b=none", "no folder none"),
        ("{m} --alias chat=a", "--alias needs models with names"),
        ("a={m} --alias a=a", "--alias a=a: a is the name of a model"),
        ("a={m} --alias chat=b", "--alias chat=b: there is no model b, but a"),
        ("a={m} b={m} --web-processes 2", "--web-processes is for a server of one model"),
        ("a={m} b={m} --inline", "--inline is for a server of one model"),
        ("a={m} b={m} --lora x={m}", "--lora is for a server of one model"),
        ("a={m} b={m} --lora-folder {m}", "--lora-folder is for a server of one model"),
        ("a={m} b={m} --served-model-name c", "--served-model-name is for a server of one model"),
    ],
)
def test_what_several_models_cannot_have_is_refused(options: str, problem: str) -> None:
    result = CliRunner().invoke(main, ["serve", *options.format(m=BUNDLED_MODEL).split()])
    assert result.exit_code == 2
    assert problem in result.output


def test_memory_is_of_several_models_on_the_cpu() -> None:
    result = CliRunner().invoke(main, ["serve", str(BUNDLED_MODEL), "--memory", "1GiB"])
    assert (result.exit_code, "--memory is divided among several models" in result.output) == (2, True)
    model = ModelSettings(name="a", path=str(BUNDLED_MODEL))
    settings = ServeSettings(engine=structs.replace(ENGINE, device="cuda"), models=(model,), memory=1 << 30)
    with pytest.raises(Refusal, match="--memory is for models on the CPU"):
        trio.run(parts_of, settings)
