"""Which files of a folder hold its tensors: safetensors, else PyTorch's, as one file or as shards with an index.

All headers are read and checked here, before anything is allocated: what is missing or damaged is named by its file.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import ValidationError, convert

from ..errors import CheckpointError
from .files import find_file, read_json
from .pytorch.file import PytorchFile
from .safetensors import SafetensorsFile, TensorFile

MAX_INDEX_BYTES: Final = 16 << 20
MAX_SHARDS: Final = 4096
_FOREIGN: Final = ("adapter_", "consolidated", "optimizer", "training_")
_SHARD: Final = re.compile(r".+-\d{5}-of-\d{5}\.(?:safetensors|bin)")


class WeightsForm(NamedTuple):
    """A file's name, that of the index where there are shards, and what opens them."""

    file: str
    index_file: str | None
    open: Callable[[Path, str], TensorFile]


# The first that is there is taken.
FORMS: Final = (
    WeightsForm("model.safetensors", "model.safetensors.index.json", SafetensorsFile),
    WeightsForm("pytorch_model.bin", "pytorch_model.bin.index.json", PytorchFile),
    WeightsForm("model.pt", None, PytorchFile),
)


def open_weights(folder: Path) -> dict[str, TensorFile]:
    """Which open file holds each tensor."""
    for form in FORMS:
        if form.index_file is not None and find_file(folder, form.index_file) is not None:
            return _open_shards(folder, form.index_file, form.open)
        if find_file(folder, form.file) is not None:
            file = form.open(folder, form.file)
            return dict.fromkeys(file.tensors, file)
    found = sorted(path.name for path in folder.iterdir())
    shards = [name for name in found if _SHARD.fullmatch(name)]
    others = [name for name in found if name.endswith(".safetensors") and not name.startswith(_FOREIGN)]
    if len(others) == 1 and not shards:  # as older programs that quantise named it: gptq_model-4bit-128g.safetensors
        file = SafetensorsFile(folder, others[0])
        return dict.fromkeys(file.tensors, file)
    names = ", ".join(form.file for form in FORMS)
    if shards:
        indexes = " or ".join(form.index_file for form in FORMS if form.index_file)
        raise CheckpointError("file", shards[0], f"is one of several, whose list is missing: copy {indexes} too")
    raise CheckpointError("file", FORMS[0].file, f"missing in {folder}, as are its other forms: {names} are read")


def _open_shards(folder: Path, index: str, open_file: Callable[[Path, str], TensorFile]) -> dict[str, TensorFile]:
    try:
        weight_map = convert(read_json(folder, index, MAX_INDEX_BYTES).get("weight_map"), dict[str, str])
    except ValidationError as error:
        raise CheckpointError("weight_map", index, str(error)) from None
    names = sorted(set(weight_map.values()))
    if len(names) > MAX_SHARDS:
        raise CheckpointError("weight_map", len(names), f"files; at most {MAX_SHARDS} are read")
    files = {name: open_file(folder, name) for name in names}
    home = {tensor: files[name] for tensor, name in weight_map.items()}
    for tensor, file in home.items():
        if tensor not in file.tensors:
            raise CheckpointError(tensor, file.name, "the index says the tensor is in this file, but it is not")
    for file in files.values():
        for tensor in file.tensors:
            if home.get(tensor) is not file:
                raise CheckpointError(tensor, file.name, "this file holds a tensor that the index does not place there")
    return home
