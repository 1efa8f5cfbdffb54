"""The trainer's network: its export is the Mistral that transformers knows, and it learns."""

import copy
import json
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import MistralConfig, MistralForCausalLM

from triolet.models.demo.training.corpus import conversation
from triolet.models.demo.training.export import export
from triolet.models.demo.training.network import Network, NetworkShape, export_tensors, import_tensors
from triolet.models.demo.training.optimizer import Optimizer, new_gradients, new_momenta, orthogonal
from triolet.models.demo.training.pack import Packer
from triolet.models.demo.training.tokenizer import plain

CHECKPOINT = Path(__file__).parents[3] / "models" / "demo" / "checkpoint"
SMALL = NetworkShape(
    vocabulary=300, hidden=48, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=80, context=128, window=24
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


@pytest.fixture
def network() -> Network:
    torch.manual_seed(3)
    return Network(SMALL)


def numbers(row: torch.Tensor) -> list[int]:
    return cast("list[int]", row.tolist())


def as_transformers(folder: Path, **changed: object) -> Any:
    config = MistralConfig(**json.loads((folder / "config.json").read_text()) | changed)
    model: Any = MistralForCausalLM(config).float()
    weights = {
        name: tensor.float() for name, tensor in safetensors.torch.load_file(folder / "model.safetensors").items()
    }
    missing, left_over = cast("tuple[list[str], list[str]]", model.load_state_dict(weights, strict=False))
    assert missing in ([], ["lm_head.weight"])
    assert left_over == []
    model.tie_weights()
    return model.eval()


@torch.inference_mode()
def test_the_export_is_the_mistral_that_transformers_knows(
    tmp_path: Path, network: Network, tokenizer: Tokenizer
) -> None:
    export(network, tokenizer, tmp_path)
    rounded = Network(SMALL)
    rounded.load_state_dict({name: tensor.bfloat16().float() for name, tensor in network.state_dict().items()})
    tokens = torch.randint(0, SMALL.vocabulary, (2, 100))
    ours = rounded(tokens)
    # Both are float32 sums of at most 80 terms of magnitude about 1, through 2 layers: 1e-5 is some 100 roundings.
    assert torch.allclose(as_transformers(tmp_path)(tokens).logits, ours, atol=1e-5, rtol=1e-5)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["rope_theta"] == SMALL.rope_theta
    for changed in ({"rope_theta": 5000.0}, {"sliding_window": 25}):
        (tmp_path / "config.json").write_text(json.dumps(config | changed))
        assert not torch.allclose(as_transformers(tmp_path)(tokens).logits, ours, atol=1e-5, rtol=1e-5)


def test_a_row_opens_with_a_conversation_and_knows_its_answers(tokenizer: Tokenizer) -> None:
    packer = Packer(tokenizer, seed=9, index=0, kept_out=frozenset())
    inputs, targets, answers = packer.rows(3, 200)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    texts = {tuple(tokenizer.encode(plain(conversation(9, index))).ids[:20]) for index in range(256)}
    assert all(tuple(numbers(row[:20])) in texts for row in inputs)
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    start = tokenizer.encode("<|im_start|>assistant\n").ids
    row = numbers(targets[0])
    first = next(i for i in range(len(row)) if row[i : i + len(start)] == start) + len(start)
    last = row.index(end, first)
    assert not answers[0, :first].any()
    assert answers[0, first : last + 1].all()
    assert not answers[0, last + 1]
    assert packer.index == 256


def test_a_muon_update_is_nearly_orthogonal() -> None:
    torch.manual_seed(1)
    for shape in ((32, 80), (80, 32)):
        values = cast("torch.Tensor", torch.linalg.svdvals(orthogonal(torch.randn(*shape))))
        assert values.min() > 0.5
        assert values.max() < 1.4
        assert torch.linalg.svdvals(torch.randn(*shape)).max() > 1.4  # what a plain gradient would do


def test_it_learns_and_goes_on_from_a_stored_state(network: Network) -> None:
    tokens = torch.randint(0, SMALL.vocabulary, (4, 33), generator=torch.Generator().manual_seed(5))
    optimizer = Optimizer(network)

    def step(net: Network, opt: Optimizer) -> float:
        loss = F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        opt.hand_in()
        opt.update(1.0)
        return float(loss.detach())

    losses = [step(network, optimizer) for _ in range(30)]
    assert losses[-1] < 0.6 * losses[0]
    other = Network(SMALL)
    other.load_state_dict(network.state_dict())
    forgetful, resumed = Optimizer(other), Optimizer(other)
    resumed.load(copy.deepcopy(optimizer.state()))  # as a file would hold it
    twin = Network(SMALL)
    twin.load_state_dict(network.state_dict())
    twin_optimizer = Optimizer(twin)
    assert forgetful.momenta[0].abs().max() == 0
    expected = [step(network, optimizer) for _ in range(3)]
    assert [step(other, resumed) for _ in range(3)] == expected
    assert [step(twin, twin_optimizer) for _ in range(3)] != expected  # without the optimizer's state it goes elsewhere


def test_two_processes_share_one_update(network: Network) -> None:
    """Two owners, each with half of the gradient sum, move every weight as one process with the mean would."""
    alone, torn = Network(SMALL), Network(SMALL)
    alone.load_state_dict(network.state_dict())
    torn.load_state_dict(network.state_dict())
    single = Optimizer(alone)
    momenta, gradients = new_momenta(torn), new_gradients(torn, 2)
    pair = [Optimizer(torn, rank, 2, momenta, gradients) for rank in range(2)]
    assert {i for i, _ in pair[0].owned}.isdisjoint(i for i, _ in pair[1].owned)
    generator = torch.Generator().manual_seed(2)
    for optimizer, share in ((pair[0], 0.5), (pair[1], 1.5), (single, 1.0)):
        generator.manual_seed(2)
        for parameter in optimizer.parameters:
            parameter.grad = share * torch.randn(parameter.shape, generator=generator)
        optimizer.hand_in()
    before = [parameter.clone() for parameter in torn.parameters()]
    pair[0].update(1.0)
    assert any(torch.equal(p, old) for p, old in zip(torn.parameters(), before, strict=True))  # not all are the first's
    pair[1].update(1.0)
    for mine, theirs, old in zip(torn.parameters(), alone_after(single), before, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4)  # Newton-Schulz rounds to bfloat16
        assert not torch.equal(mine, old)


def alone_after(optimizer: Optimizer) -> list[torch.Tensor]:
    optimizer.update(1.0)
    return [parameter.detach() for parameter in optimizer.parameters]


def test_an_exported_checkpoint_can_be_taken_over(network: Network) -> None:
    other = Network(SMALL)
    exported = export_tensors(network)
    import_tensors(other, exported)
    for name, weights in export_tensors(other).items():
        assert torch.equal(weights, exported[name]), name
    with pytest.raises(ValueError, match="not a checkpoint"):
        import_tensors(other, {name: weights for name, weights in exported.items() if name != "model.norm.weight"})
