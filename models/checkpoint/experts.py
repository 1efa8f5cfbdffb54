"""The description of a model's experts, and their weights as a checkpoint has them. Knows no devices."""

from collections.abc import Callable
from math import inf
from typing import Final

from msgspec import Struct

from ...kernels.experts.routing import Routing
from .safetensors import WeightArray

MAX_EXPERTS: Final = 1 << 16  # of all layers together; the largest models have 25,000
MAX_PIECES: Final = 6 * MAX_EXPERTS  # their matrices and biases: each is an object before any is read


class ExpertNames(Struct, frozen=True, kw_only=True):
    """What a family calls the weights, after the layer's prefix."""

    router: str = "mlp.gate"
    experts: str = "mlp.experts.{}."
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    correction: str = "mlp.gate.e_score_correction_bias"
    shared: str = "mlp.shared_expert."
    shared_gate: str = "mlp.shared_expert_gate"
    in_turn: bool = False  # where one tensor has all experts: [inputs, outputs], gates and ups in turn


class ExpertSpec(Struct, frozen=True, kw_only=True):
    """The experts of a layer, the same in every layer that has some."""

    count: int
    width: int  # of an expert's middle layer
    routing: Routing
    corrected: bool = False  # the choice, not the weights, is by score + a stored correction
    biased: bool = False  # the router and all projections have biases
    shared_width: int = 0  # of an expert that every token takes; 0: there is none
    shared_gated: bool = False  # its weight is the sigmoid of one more channel of the router, else 1
    # The middle is gate * sigmoid(slope * gate) * (up + offset), of gates up to the limit and ups within +- it.
    gate_limit: float = inf
    gate_slope: float = 1.0
    up_offset: float = 0.0
    names: ExpertNames = ExpertNames()

    def parameters(self, hidden: int, experts: int) -> int:
        """Weights of a layer with that many experts; all of the router's count."""
        one = 3 * hidden * self.width + self.biased * (2 * self.width + hidden)
        router = self.count * (hidden + self.biased + self.corrected) + hidden * self.shared_gated
        return experts * one + router + 3 * hidden * self.shared_width


class MlpWeights(Struct, frozen=True, kw_only=True):
    """One gated MLP; matrices are [out, in]."""

    gate: WeightArray
    up: WeightArray
    down: WeightArray
    gate_bias: WeightArray | None = None
    up_bias: WeightArray | None = None
    down_bias: WeightArray | None = None


class ExpertWeights(Struct, frozen=True, kw_only=True):
    """The experts of one layer."""

    router: WeightArray  # [experts, hidden]
    experts: tuple[MlpWeights, ...]
    router_bias: WeightArray | None = None
    correction: WeightArray | None = None  # [experts]
    shared: MlpWeights | None = None
    shared_gate: WeightArray | None = None  # [1, hidden]


MIXTRAL_NAMES = ExpertNames(
    router="block_sparse_moe.gate", experts="block_sparse_moe.experts.{}.", gate="w1", up="w3", down="w2"
)


def names_beside_fused(names: ExpertNames) -> ExpertNames:
    """What a file calls its weights whose experts are in one tensor: Mixtral's are then called as the others' are."""
    return ExpertNames() if names == MIXTRAL_NAMES else names


def take_experts(take: Callable[..., WeightArray], spec: ExpertSpec, prefix: str, hidden: int) -> ExpertWeights:
    """The experts of one layer, each weight from `take(name, *shape)`."""
    names = spec.names

    def bias(name: str, size: int) -> WeightArray | None:
        return take(f"{prefix}{name}.bias", size) if spec.biased else None

    def take_mlp(start: str, width: int) -> MlpWeights:
        gate, up, down = (start + name for name in (names.gate, names.up, names.down))
        return MlpWeights(
            gate=take(f"{prefix}{gate}.weight", width, hidden),
            up=take(f"{prefix}{up}.weight", width, hidden),
            down=take(f"{prefix}{down}.weight", hidden, width),
            gate_bias=bias(gate, width),
            up_bias=bias(up, width),
            down_bias=bias(down, hidden),
        )

    return ExpertWeights(
        router=take(f"{prefix}{names.router}.weight", spec.count, hidden),
        router_bias=bias(names.router, spec.count),
        experts=tuple(take_mlp(names.experts.format(index), spec.width) for index in range(spec.count)),
        correction=take(prefix + names.correction, spec.count) if spec.corrected else None,
        shared=take_mlp(names.shared, spec.shared_width) if spec.shared_width else None,
        shared_gate=take(f"{prefix}{names.shared_gate}.weight", 1, hidden) if spec.shared_gated else None,
    )
