"""What sentence-transformers' files beside a model say: pooling, dense layers, prompts, sizes of vectors.

    modules.json                       the modules after the encoder, in order
    1_Pooling/config.json              how a text's tokens become one vector
    2_Dense/config.json                a layer on it, with its own model.safetensors
    config_sentence_transformers.json  prompts by name, and the one that is always put in front
    sentence_bert_config.json          the longest text the model was trained on

Without modules.json a text's vector is the mean of its tokens', as in sentence-transformers.
"""

from pathlib import Path
from typing import Annotated, Literal, cast, get_args

from msgspec import Meta, Struct, ValidationError, convert

from ..checkpoint.checkpoint import TensorFolder
from ..checkpoint.config import Config
from ..checkpoint.files import find_file, folder_of, read_bytes, read_json
from ..checkpoint.safetensors import WeightArray, to_float32
from ..checkpoint.stored import StoredMatrix
from ..errors import CheckpointError, UnsupportedModel
from .head import Dense, Head, Pooling

MAX_BYTES = 1 << 20
MOST_MODULES = 16
OLD_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Python names of activation functions, by their last part in lower case
FUNCTIONS = ("identity", "tanh", "relu", "gelu", "silu", "sigmoid")


class Module(Struct, frozen=True):
    """One entry of modules.json; `type` is a Python class, of which only the last part counts."""

    path: Annotated[str, Meta(max_length=200)]
    type: str
    idx: int = 0
    name: str = ""

    @property
    def kind(self) -> str:
        return self.type.rsplit(".", 1)[-1]


class SentenceFiles(Struct, frozen=True, kw_only=True):
    """What the files say."""

    head: Head
    max_length: int | None = None
    prompts: dict[str, str] = {}
    default_prompt: str | None = None  # one of the prompts' names
    dimensions: tuple[int, ...] = ()  # of shortened vectors that the model was trained for; empty: the files name none


def has_modules(folder: Path) -> bool:
    return find_file(folder, "modules.json") is not None


def read_sentence_files(folder: Path, hidden_size: int) -> SentenceFiles:
    """Everything that the files say, refusing modules that this engine does not have."""
    settings = Config(_optional(folder, "config_sentence_transformers.json"), "config_sentence_transformers.")
    prompts = settings.mapping("prompts")
    default = settings.text("default_prompt_name", "") or None
    try:
        named = {} if prompts is None else convert(prompts.values, dict[str, str])
        listed = convert(_optional(folder, "config.json").get("matryoshka_dimensions") or [], list[int])
    except ValidationError as error:
        raise settings.invalid("prompts", str(error)) from None
    if default is not None and default not in named:
        raise settings.invalid("default_prompt_name", f"expected one of {', '.join(named) or 'the prompts (none)'}")
    if not all(0 < size <= hidden_size for size in listed):
        raise CheckpointError("matryoshka_dimensions", listed, f"expected sizes from 1 to {hidden_size}")
    length = Config(_optional(folder, "sentence_bert_config.json"), "sentence_bert_config.")
    return SentenceFiles(
        head=_read_head(folder, hidden_size),
        max_length=length.size("max_seq_length") if length.has("max_seq_length") else None,
        prompts=named,
        default_prompt=default,
        dimensions=tuple(sorted(listed)),
    )


def _read_head(folder: Path, hidden_size: int) -> Head:
    if not has_modules(folder):
        return Head(pooling="mean")
    try:
        modules = convert(_json_list(read_bytes(folder, "modules.json", MAX_BYTES)), list[Module])
    except ValidationError as error:
        raise CheckpointError("file", "modules.json", str(error)) from None
    if not modules or modules[0].kind != "Transformer" or modules[0].path not in ("", "."):
        raise UnsupportedModel("modules.json", modules[0].kind if modules else None, "expected a Transformer first")
    pooling: Pooling | None = None
    layers: list[Dense] = []
    ending: Literal["as is", "normalise"] = "as is"
    for module in modules[1:MOST_MODULES]:
        match module.kind:
            case "Pooling" if pooling is None and not layers:
                pooling = _pooling(_module_folder(folder, module))
            case "Dense" if pooling is not None and ending == "as is":
                size = len(layers[-1].weight) if layers else hidden_size
                layers.append(_dense(_module_folder(folder, module), size))
            case "Normalize" if pooling is not None:
                ending = "normalise"
            case "Dropout":
                pass
            case _:
                raise UnsupportedModel("modules.json", module.type, "expected Pooling, then Dense, then Normalize")
    if pooling is None:
        raise UnsupportedModel("modules.json", [module.kind for module in modules], "there is no Pooling among them")
    return Head(pooling=pooling, layers=tuple(layers), ending=ending)


def _module_folder(folder: Path, module: Module) -> Path:
    if "/" in module.path.strip("/") or module.path.strip("/") in ("", ".", ".."):
        raise CheckpointError("modules.json", module.path, "expected a folder beside it")
    found = folder_of(folder / module.path.strip("/"))
    if not found.is_relative_to(folder):
        raise CheckpointError("modules.json", module.path, "links to a place outside the checkpoint folder")
    return found


def _pooling(folder: Path) -> Pooling:
    config = Config(read_json(folder, "config.json", MAX_BYTES), f"{folder.name}/config.")
    config.must_be("include_prompt", True, remedy="prompts that are left out of the pooling are not supported")
    if config.has("pooling_mode"):
        mode = config.text("pooling_mode")
        if mode not in get_args(Pooling):
            raise config.unsupported("pooling_mode", f"expected one of {', '.join(get_args(Pooling))}")
        return cast("Pooling", mode)
    modes: list[Pooling] = [mode for key, mode in OLD_POOLINGS.items() if config.flag(key, False)]
    if len(modes) > 1:
        raise UnsupportedModel(f"{folder.name}/config.json", modes, "several poolings side by side are not supported")
    return modes[0] if modes else "mean"


def _dense(folder: Path, inputs: int) -> Dense:
    config = Config(read_json(folder, "config.json", MAX_BYTES), f"{folder.name}/config.")
    config.must_be("use_residual", False, remedy="a residual around a Dense module is not supported")
    config.must_be("module_input_name", "sentence_embedding", remedy="only the pooled vector can be its input")
    config.must_be("module_output_name", "sentence_embedding", remedy="only the pooled vector can be its output")
    if config.size("in_features") != inputs:
        raise config.invalid("in_features", f"expected {inputs}, the size before it")
    name = config.text("activation_function", "torch.nn.modules.activation.Tanh")
    activation = name.rsplit(".", 1)[-1].lower()
    if activation not in FUNCTIONS:
        raise config.unsupported("activation_function", f"expected one of {', '.join(FUNCTIONS)}")
    tensors = TensorFolder(folder)
    outputs = config.size("out_features")
    weight = _take(tensors, "linear.weight", outputs, inputs)
    bias = _take(tensors, "linear.bias", outputs) if config.flag("bias", True) else None
    return Dense(to_float32(weight).copy(), None if bias is None else to_float32(bias).copy(), activation)


def _take(tensors: TensorFolder, name: str, *shape: int) -> WeightArray:
    if name not in tensors.tensor_names:
        raise CheckpointError(f"{tensors.name}: {name}", None, "this weight is missing")
    if tensors.tensor_shape(name) != shape:
        raise CheckpointError(f"{tensors.name}: {name}", tensors.tensor_shape(name), f"expected the shape {shape}")
    array = tensors.read_tensor(name)
    if isinstance(array, StoredMatrix):
        raise UnsupportedModel(f"{tensors.name}: {name}", array.format, "quantised Dense modules are not read")
    return array


def _optional(folder: Path, name: str) -> dict[str, object]:
    return {} if find_file(folder, name) is None else read_json(folder, name, MAX_BYTES)


def _json_list(text: bytes) -> object:
    import msgspec.json

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError("file", "modules.json", f"is not valid JSON ({error})") from None
