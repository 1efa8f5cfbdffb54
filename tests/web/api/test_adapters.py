"""Who may load LoRA adapters, and how names are resolved; the engine is a script."""

from pathlib import Path

import pytest
from msgspec import structs

from triolet.protocol.adapters import Adapter
from triolet.protocol.errors import ApiError
from triolet.protocol.settings import LimitSettings, ServeSettings
from triolet.web.generation.asked import ServedModel
from triolet.web.openai.request import named_adapter
from triolet.web.routes.adapters import path_in

from .conftest import READY, Web

LAW = Adapter("law", "/adapters/law")
SERVED = ServedModel("tiny", READY, LimitSettings(), {"law": LAW})


@pytest.mark.parametrize(
    ("model", "fallbacks", "adapter"),
    [
        (None, (), None),
        ("tiny", (), None),
        ("law", (), LAW),
        ("tiny:law", (), LAW),
        ("other", ("law",), LAW),
        ("other", ("nothing", "tiny", "law"), None),
        ("tiny", ("law",), None),
    ],
)
def test_the_first_name_that_is_served_counts(
    model: str | None, fallbacks: tuple[str, ...], adapter: Adapter | None
) -> None:
    assert named_adapter(model, SERVED, fallbacks) == adapter


@pytest.mark.parametrize("model", ["lawe", "other:law", "tiny:", "law:tiny", "tiny:tiny", "x" * 5000])
def test_another_name_is_told_the_nearest(model: str) -> None:
    with pytest.raises(ApiError, match="There is no model") as refused:
        named_adapter(model, SERVED)
    assert (refused.value.code, len(refused.value.message) < 300) == ("model_not_found", True)
    assert ("Did you mean 'law'?" in refused.value.message) == (model == "lawe")


def test_a_server_of_many_adapters_names_some_of_them() -> None:
    many = {f"adapter-{number}": structs.replace(LAW, name=f"adapter-{number}") for number in range(1000)}
    with pytest.raises(ApiError) as refused:
        named_adapter("nothing", SERVED._replace(adapters=many))
    assert len(refused.value.message) < 1000


def test_only_what_is_in_the_folder_is_read(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in" / "law", tmp_path / "in-other"
    for folder in (inside, outside):
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").touch()
    (tmp_path / "in" / "way-out").symlink_to(outside)
    (tmp_path / "link").symlink_to(tmp_path / "in")
    for allowed in (tmp_path / "in", tmp_path / "link"):
        assert path_in(str(allowed), "law") == path_in(str(allowed), str(inside)) == str(inside)
    for given in ("../in-other", str(outside), "way-out", ".", "", "..", "/", "law/../..", "a\0b", "law/none"):
        with pytest.raises(ApiError, match="lora_path"):
            path_in(str(tmp_path / "in"), given)


async def test_without_the_folder_there_is_nothing_to_load(web: Web) -> None:
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        answer = await web.client.post(path, json={"lora_name": "law", "lora_path": "law"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unsupported_endpoint")


class TestWithOperators:
    @pytest.fixture
    def settings(self, settings: ServeSettings, tmp_path: Path) -> ServeSettings:
        (tmp_path / "law").mkdir()
        (tmp_path / "law" / "adapter_config.json").touch()
        return structs.replace(settings, api_keys=("client",), operator_keys=("boss",), lora_folder=str(tmp_path))

    async def test_an_operator_loads_what_clients_use(self, web: Web) -> None:
        async def post(path: str, key: str, **body: object) -> int:
            answer = await web.client.post(path, json=body, headers={"Authorization": f"Bearer {key}"})
            return answer.status_code

        load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
        asked = {"prompt": "a", "model": "law"}
        assert await post(load, "client", lora_name="law", lora_path="law") == 401
        assert await post("/v1/completions", "client", **asked) == 404
        assert await post(load, "boss", lora_name="law", lora_path="law", load_inplaces=True) == 400
        assert await post(load, "boss", lora_name="law", lora_path="law") == 200
        assert await post("/v1/completions", "client", **asked) == 200
        assert web.engine.requests[-1].adapter is not None
        assert await post(unload, "client", lora_name="law") == 401
        assert await post(unload, "boss", lora_name="law") == 200
        assert await post("/v1/completions", "client", **asked) == 404
