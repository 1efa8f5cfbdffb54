import pytest

from triolet.models.errors import LoadError
from triolet.models.hub.choice import Choice, choose_files, choose_gguf

TEXT = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


def choose(*files: str, gguf_file: str | None = None) -> Choice:
    return choose_files(dict.fromkeys(files, 10**9), gguf_file, "org/name")


@pytest.mark.parametrize(
    ("there", "weights"),
    [
        (
            ("model.safetensors", "pytorch_model.bin", "onnx/model.onnx", "model.fp16.safetensors"),
            ("model.safetensors",),
        ),
        ((INDEX, *SHARDS, "consolidated.safetensors", "original/params.json"), SHARDS),
        ((INDEX, *SHARDS, "model.safetensors"), SHARDS),
        (("gptq_model-4bit-128g.safetensors",), ("gptq_model-4bit-128g.safetensors",)),
        (("pytorch_model.bin", "training_args.bin", "optimizer.bin"), ("pytorch_model.bin",)),
        (
            ("pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin"),
            ("pytorch_model-00001-of-00001.bin",),
        ),
        (("model.safetensors", "m.Q8_0.gguf"), ("model.safetensors",)),
        (("pytorch_model.bin", "model.pt"), ("pytorch_model.bin",)),
        (("model.pt", "optimizer.pt", "scheduler.pt", "m.Q8_0.gguf"), ("model.pt",)),
    ],
)
def test_the_weights_of_a_repository(there: tuple[str, ...], weights: tuple[str, ...]) -> None:
    found = choose(*TEXT, *there, "README.md", ".gitattributes", "figure.png", "adapter_config.json")
    assert found.weights == weights
    assert set(found.small) == {*TEXT, *(file for file in there if file.endswith(".index.json"))}
    assert found.entry is None


def test_stages_after_an_encoder_and_further_templates_come_along() -> None:
    extras = ("1_Pooling/config.json", "2_Dense/config.json", "additional_chat_templates/rag.jinja", "vocab.txt")
    found = choose("model.safetensors", "2_Dense/model.safetensors", *extras)
    assert set(found.small) == set(extras)
    assert found.weights == ("model.safetensors", "2_Dense/model.safetensors")
    stages = ("2_Dense/pytorch_model.bin", "3_Dense/pytorch_model.bin", "3_Dense/model.safetensors")
    found = choose("pytorch_model.bin", "1_Pooling/config.json", *stages)
    assert found.weights == ("pytorch_model.bin", "2_Dense/pytorch_model.bin", "3_Dense/model.safetensors")


def test_a_gguf_file_is_asked_for_or_the_only_one() -> None:
    assert choose("config.json", "m.gguf", "README.md") == Choice((), ("m.gguf",), "m.gguf")
    assert choose("model.safetensors", "m.Q8_0.gguf", gguf_file="Q8_0").entry == "m.Q8_0.gguf"
    split = tuple(f"BF16/m-BF16-0000{part}-of-00003.gguf" for part in (1, 2, 3))
    assert choose(*split, "m-Q4_0.gguf", gguf_file="BF16") == Choice((), split, split[0])
    with pytest.raises(LoadError, match="has 2 of its 3 parts: get the missing ones"):
        choose(*split[:2])
    with pytest.raises(
        LoadError, match=r"among BF16/m-BF16-00001-of-00003\.gguf \(3\.00 GB\), m-Q4_0\.gguf \(1\.00 GB\)$"
    ):
        choose(*split, "m-Q4_0.gguf")
    with pytest.raises(LoadError, match=r"org/name has no \.gguf files, but model.safetensors"):
        choose("model.safetensors", gguf_file="Q8_0")
    with pytest.raises(LoadError, match=r"no \.gguf file that holds a model"):
        choose_gguf({"mmproj-m.gguf": 1}, None, "org/name")


def test_a_repository_without_a_model_says_what_it_has() -> None:
    with pytest.raises(LoadError, match=r"hold a model, but a0\.txt, .* and 2 more$"):
        choose(*(f"a{index}.txt" for index in range(10)))
    with pytest.raises(LoadError, match="but no files at all"):
        choose()
    with pytest.raises(LoadError, match="org/name has no safetensors"):
        choose("adapter_model.safetensors", "training_args.bin")
