"""The demo model as the trainer sees it: a Mistral decoder in plain torch, with the names of its Hugging Face export.

Float32 master weights; where the CPU is good at it, the trainer runs it under bfloat16 autocast. Queries, keys and
values are one matrix here, and so are gate and up; `export_tensors` splits them. Rotary pairs are (i, i + head_dim /
2), as in Hugging Face.
"""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class NetworkShape:
    vocabulary: int
    hidden: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    mlp: int = 704
    context: int = 8192
    window: int = 256  # a token sees so many, itself included: no distance is beyond those of training
    rope_theta: float = 10000.0
    rms_eps: float = 1e-5


def attend(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Causal attention over the last `window` tokens in a training pass, [batch, heads, time, head_dim].

    Written out, since torch's fused operation has a slow backward on a CPU for heads this small. This makes a training
    step on rows of 256 1.28 times as fast. The queries of all heads that share keys are stacked into one product.
    """
    batch, heads, time, width = q.shape
    shared = k.shape[1]
    rows = (q * width**-0.5).reshape(batch * shared, -1, width)
    scores = torch.bmm(rows, k.reshape(batch * shared, time, width).mT).view(batch * shared, -1, time, time)
    place = torch.arange(time)
    distance = place[:, None] - place
    scores = scores.float().masked_fill((distance < 0) | (distance >= window), float("-inf"))
    weights = torch.softmax(scores, -1).to(v.dtype).view(batch * shared, -1, time)
    return torch.bmm(weights, v.reshape(batch * shared, time, width)).view(batch, heads, time, width)


class Layer(nn.Module):
    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        attended = shape.heads * shape.head_dim
        self.qkv = nn.Parameter(torch.randn(attended + 2 * shape.kv_heads * shape.head_dim, shape.hidden) * 0.02)
        self.out = nn.Parameter(torch.randn(shape.hidden, attended) * 0.02 / (2 * shape.layers) ** 0.5)
        self.gate_up = nn.Parameter(torch.randn(2 * shape.mlp, shape.hidden) * 0.02)
        self.down = nn.Parameter(torch.randn(shape.hidden, shape.mlp) * 0.02 / (2 * shape.layers) ** 0.5)
        self.attention_norm = nn.Parameter(torch.ones(shape.hidden))
        self.mlp_norm = nn.Parameter(torch.ones(shape.hidden))

    def project(self, h: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, each [batch, heads, time, head_dim]."""
        s = self.shape
        batch, time, _ = h.shape
        y = F.linear(F.rms_norm(h, (s.hidden,), self.attention_norm, s.rms_eps), self.qkv)
        y = y.view(batch, time, s.heads + 2 * s.kv_heads, s.head_dim).transpose(1, 2)
        turned, v = y[:, : s.heads + s.kv_heads], y[:, s.heads + s.kv_heads :]
        a, b = turned[..., : s.head_dim // 2], turned[..., s.head_dim // 2 :]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(y.dtype)
        return turned[:, : s.heads], turned[:, s.heads :], v

    def finish(self, h: Tensor, attended: Tensor) -> Tensor:
        s = self.shape
        batch, time, _ = h.shape
        h = h + F.linear(attended.transpose(1, 2).reshape(batch, time, s.heads * s.head_dim), self.out)
        gate, up = F.linear(F.rms_norm(h, (s.hidden,), self.mlp_norm, s.rms_eps), self.gate_up).chunk(2, -1)
        return h + F.linear(F.silu(gate) * up, self.down)


class Network(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocabulary, shape.hidden) * 0.02)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        exponents = torch.arange(0, shape.head_dim, 2).float() / shape.head_dim
        angles = torch.outer(torch.arange(shape.context).float(), shape.rope_theta**-exponents)
        self.register_buffer("cos", torch.cos(angles), persistent=False)
        self.register_buffer("sin", torch.sin(angles), persistent=False)

    def stack(self) -> list[Layer]:
        """The layers, typed: ModuleList loses their type."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, time, vocabulary] of a causal pass."""
        return self.head(self.hidden(tokens))

    def hidden(self, tokens: Tensor) -> Tensor:
        """The head's input, [batch, time, hidden]."""
        h = self.embedding[tokens]
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for layer in self.stack():
            q, k, v = layer.project(h, cos, sin)
            h = layer.finish(h, attend(q, k, v, self.shape.window))
        return h

    def head(self, h: Tensor) -> Tensor:
        return F.linear(F.rms_norm(h, (self.shape.hidden,), self.norm, self.shape.rms_eps), self.embedding)


def named_views(network: Network) -> dict[str, Tensor]:
    """The weights under the names that MistralForCausalLM expects; the head is tied to the embedding."""
    s = network.shape
    tensors: dict[str, Tensor] = {"model.embed_tokens.weight": network.embedding, "model.norm.weight": network.norm}
    for index, layer in enumerate(network.stack()):
        prefix = f"model.layers.{index}."
        attended, shared = s.heads * s.head_dim, s.kv_heads * s.head_dim
        q, k, v = torch.split(layer.qkv, [attended, shared, shared])
        gate, up = layer.gate_up.chunk(2)
        tensors |= {
            prefix + "self_attn.q_proj.weight": q,
            prefix + "self_attn.k_proj.weight": k,
            prefix + "self_attn.v_proj.weight": v,
            prefix + "self_attn.o_proj.weight": layer.out,
            prefix + "mlp.gate_proj.weight": gate,
            prefix + "mlp.up_proj.weight": up,
            prefix + "mlp.down_proj.weight": layer.down,
            prefix + "input_layernorm.weight": layer.attention_norm,
            prefix + "post_attention_layernorm.weight": layer.mlp_norm,
        }
    return {name: tensor.detach() for name, tensor in tensors.items()}


def export_tensors(network: Network) -> dict[str, Tensor]:
    """A copy of the weights in bfloat16, as in a checkpoint."""
    return {name: view.to(torch.bfloat16).contiguous().clone() for name, view in named_views(network).items()}


def import_tensors(network: Network, tensors: dict[str, Tensor]) -> None:
    """Load the weights of a checkpoint of the same shape."""
    views = named_views(network)
    if views.keys() != tensors.keys():
        raise ValueError(f"not a checkpoint of this network: {sorted(views.keys() ^ tensors.keys())[:4]}")
    for name, view in views.items():
        view.copy_(tensors[name])


def mistral_config(shape: NetworkShape, end_ids: list[int]) -> dict[str, object]:
    fields = asdict(shape)
    return {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "vocab_size": fields["vocabulary"],
        "hidden_size": fields["hidden"],
        "num_hidden_layers": fields["layers"],
        "num_attention_heads": fields["heads"],
        "num_key_value_heads": fields["kv_heads"],
        "head_dim": fields["head_dim"],
        "intermediate_size": fields["mlp"],
        "max_position_embeddings": fields["context"],
        "sliding_window": fields["window"],
        "rope_theta": fields["rope_theta"],
        "rope_scaling": None,
        "rms_norm_eps": fields["rms_eps"],
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": None,
        "pad_token_id": 0,
        "eos_token_id": end_ids[0] if len(end_ids) == 1 else end_ids,
        "torch_dtype": "bfloat16",
    }
