"""A linear layer's weights as the GPU's GEMMs read them: quantised once at load, packed once at load.

Nothing here runs while serving. Matrices are [N, K] (out, in); y = x W^T.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .gpu_table import LinearFormat

Tensor = torch.Tensor
GROUPS = (32, 64, 128)  # of 4-bit weights
BYTE_GROUPS = (0, 16, 32, 64)  # of bytes; 0: the whole channel
E4M3_LARGEST = 448.0


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """The weights of one linear layer. The tensors' layouts are those of the format's kernels."""

    format: LinearFormat
    n: int
    k: int
    weight: Tensor
    scales: Tensor | None = None  # none: bf16
    offsets: Tensor | None = None  # w4a16 with zero points
    group: int = 0  # weights that share a scale; 0: per channel. fp8: 128 where scales are of 128 x 128 blocks, else 0
    minima: Tensor | None = None  # w4a16 in groups of 32, in the place of zero points: scale x integer - minimum

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Those that it has, by the names of their fields."""
        parts = {"weight": self.weight, "scales": self.scales, "offsets": self.offsets, "minima": self.minima}
        return {name: part for name, part in parts.items() if part is not None}


def quantise_w4(weight: Tensor, group: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Nearest 4-bit integers 0..15 [N, K], bfloat16 scales [N, K / group], zero points (8 where symmetric: None).

    The weights stand for (integer - zero) x scale. Scales are rounded before the integers are chosen for them.
    """
    check_group(weight.shape[1], group)
    grouped = weight.float().reshape(len(weight), -1, group)
    if symmetric:
        scales = (grouped.abs().amax(2) / 7).clamp(min=1e-20).bfloat16()
        zeros = torch.full_like(scales, 8.0, dtype=torch.float32)
    else:
        low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
        scales = ((high - low) / 15).clamp(min=1e-20).bfloat16()
        zeros = (-low / scales.float()).round().clamp(0, 15)
    integers = (grouped / scales.float()[:, :, None] + zeros[:, :, None]).round().clamp(0, 15).to(torch.uint8)
    return integers.flatten(1), scales, None if symmetric else zeros.to(torch.uint8)


def pack_w4(
    integers: Tensor, scales: Tensor, zeros: Tensor | None, group: int, minima: Tensor | None = None
) -> PackedLinear:
    """4-bit integers [N, K] (uint8, 0..15), scales and zero points, or minima, [N, K / group] in the kernels' layout.

    Scales and minima keep their float types.
    """
    n, k = integers.shape
    check_group(k, group)
    for name, tensor in (("scales", scales), ("zeros", zeros), ("minima", minima)):
        if tensor is not None and tensor.shape != (n, k // group):
            needed = f"weights {[n, k]} of group {group} need {[n, k // group]}"
            raise ValueError(f"{name} are {list(tensor.shape)}; {needed}")
    if minima is not None and (zeros is not None or group != min(GROUPS)):
        raise ValueError(f"minima of groups of {group}: they are of {min(GROUPS)} weights, and without zero points")
    padded_n, k_blocks, groups = -(-n // 128) * 128, -(-k // 128), 128 // group
    whole = integers.new_zeros(padded_n, 128 * k_blocks)
    whole[:n, :k] = integers
    low, high = (_in_fragments(half) for half in whole.reshape(padded_n, k_blocks, 2, 64).unbind(2))
    offsets = None
    if zeros is not None:
        offsets = _in_pairs((-128.0 - zeros.float()).bfloat16(), padded_n, k_blocks, groups)
    scales = _in_pairs(scales, padded_n, k_blocks, groups)
    least = None if minima is None else _in_pairs(minima, padded_n, k_blocks, groups)
    return PackedLinear("w4a16", n, k, low | high << 4, scales, offsets, group, least)


def pack_w8(weight: Tensor) -> PackedLinear:
    """W8A16: bytes in fragment order and one scale per channel, from weights of any float type."""
    return pack_bytes(*quantise_int8(weight), 0)


def pack_bytes(integers: Tensor, scales: Tensor, group: int) -> PackedLinear:
    """W8A16 from int8 [N, K] and float32 scales [N] (group 0), or scales of any float type [N, K / group].

    Weights of a group that is a multiple of 64 are the same with scales repeated for each 64 of them.
    """
    n, k = integers.shape
    if tuple(scales.shape) != ((n, -(-k // group)) if group else (n,)) or group not in BYTE_GROUPS:
        raise ValueError(f"scales are {list(scales.shape)}, of groups of {group}; bytes are {[n, k]}")
    padded_n, k_blocks = -(-n // 128) * 128, -(-k // 64)
    whole = integers.new_zeros(padded_n, k_blocks * 64)
    whole[:n, :k] = integers
    packed = _in_fragments(whole.reshape(padded_n, -1, 64)).view(torch.uint8)
    if not group:
        return PackedLinear("w8a16", n, k, packed, torch.nn.functional.pad(scales, (0, padded_n - n)))
    of_blocks = _padded(scales, padded_n, k_blocks * (64 // group)).view(padded_n, k_blocks, 64 // group)
    return PackedLinear("w8a16", n, k, packed, of_blocks.permute(1, 0, 2).contiguous(), group=group)


def quantise_int8(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest int8 in -127..127 and a float32 scale per row: of weights per channel, of activations per token."""
    wide = matrix.float()
    scales = (wide.abs().amax(1) / 127).clamp(min=1e-20)
    return (wide / scales[:, None]).round().to(torch.int8), scales


def pack_w8a8(weight: Tensor) -> PackedLinear:
    (n, k), (integers, scales) = weight.shape, quantise_int8(weight)
    return PackedLinear("w8a8", n, k, integers, scales)


def quantise_fp8(matrix: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """e4m3 and the float32 scales of blocks of rows x columns; 0: the whole extent, without a dimension in the scales.

    (0, 0) per tensor [], (1, 0) per channel or token [rows], (128, 128) blocks, (1, 128) groups of a token.
    """
    m, k = matrix.shape
    height, width = rows or m, columns or k
    tall, wide = -(-m // height), -(-k // width)
    padded = _padded(matrix.float(), tall * height, wide * width)
    blocks = padded.view(tall, height, wide, width)
    scales = (blocks.abs().amax((1, 3)) / E4M3_LARGEST).clamp(min=1e-12)
    scaled = (blocks / scales[:, None, :, None]).clamp(-E4M3_LARGEST, E4M3_LARGEST).reshape(padded.shape)
    if not columns:
        scales = scales[:, 0] if rows else scales[0, 0]
    return scaled[:m, :k].to(torch.float8_e4m3fn).contiguous(), scales


def pack_fp8(weight: Tensor, scales: Tensor) -> PackedLinear:
    """e4m3 weights with float32 scales: [], [N], or [N / 128, K / 128] of 128 x 128 blocks."""
    n, k = weight.shape
    blocks = (-(-n // 128), -(-k // 128))
    if weight.dtype != torch.float8_e4m3fn or tuple(scales.shape) not in ((), (n,), blocks):
        raise ValueError(
            f"float8 weights {[n, k]} must be e4m3 with scales [], [{n}] or {list(blocks)}; "
            f"these are {weight.dtype} with scales {list(scales.shape)}"
        )
    group = 128 if scales.ndim == 2 else 0
    return PackedLinear("fp8", n, k, weight.contiguous(), scales.float().contiguous(), group=group)


def pack_bf16(weight: Tensor) -> PackedLinear:
    n, k = weight.shape
    return PackedLinear("bf16", n, k, weight.bfloat16().contiguous())


def pack_fp32(weight: Tensor) -> PackedLinear:
    n, k = weight.shape
    return PackedLinear("fp32", n, k, weight.float().contiguous())


def check_group(k: int, group: int) -> None:
    if group not in GROUPS or k % group:
        raise ValueError(f"a group of {group} weights: it must be 32, 64 or 128 and divide the {k} in-features")


def _padded(matrix: Tensor, rows: int, columns: int) -> Tensor:
    return torch.nn.functional.pad(matrix, (0, columns - matrix.shape[1], 0, rows - matrix.shape[0]))


def _in_fragments(values: Tensor) -> Tensor:
    """[N, K blocks, 64] to [N / 64, K blocks, 4096] in the order of gpu_fragment.py."""
    n, k_blocks, _ = values.shape
    #                    rows: block, w, r, g          columns: s, b, a, c, p
    bits = values.reshape(n // 64, 4, 2, 8, k_blocks, 2, 2, 2, 4, 2)
    return bits.permute(0, 4, 5, 1, 3, 8, 6, 7, 2, 9).reshape(n // 64, k_blocks, 4096).contiguous()


def _in_pairs(values: Tensor, padded_n: int, k_blocks: int, groups: int) -> Tensor:
    """Of groups, [N, K / group], to [K blocks, N / 64, 32, groups, 2]: rows g and g + 8 of (w, g) side by side."""
    #                                                            block, w, r, g
    of_rows = _padded(values, padded_n, groups * k_blocks).view(-1, 4, 2, 8, k_blocks, groups)
    return of_rows.permute(4, 0, 1, 3, 5, 2).reshape(k_blocks, -1, 32, groups, 2).contiguous()
