"""Steps 1 to 4 of reference.py and the mask: raw logits to adjusted ones, and the best of every block.

Seen tokens are a dense table [slots, vocab] of int32 on the device: bit 0 says that the token was seen, the rest how
often it was drawn. Dense, because the token drawn in one step must count in the next before the host has seen it, and a
captured graph cannot grow a list: the kernel that picks a token adds 2 to one entry. Only rows with penalties have a
slot. A pass reads 4 bytes a token more for them.

Bias and bans are one list in CSR form, short and known to the host: a ban is a bias of -inf.
"""

from ..gpu.language import await_inputs, jit, tl
from .gpu_numbers import LOWEST_RANK, NEGATIVE_INFINITY, ranked
from .gpu_rows import FREQUENCY, PRESENCE, REPETITION, TARGET, integer, real

EDITS = tl.constexpr(128)  # entries of the list at a time


@jit
def penalised(value, counts, repetition, frequency, presence):
    """Repetition for every token seen, frequency and presence for those drawn."""
    repeated = tl.where(value > 0.0, tl.div_rn(value, repetition), value * repetition)
    value = tl.where(counts > 0, repeated, value)
    times = counts >> 1
    return tl.where(times > 0, value - frequency * times.to(tl.float32) - presence, value)


@jit
def allowed(mask, token, inside):
    """The mask's bits: bit t % 32 of word t // 32 allows token t."""
    words = tl.load(mask + token // 32, mask=inside, other=0)
    return ((words >> (token % 32)) & 1) != 0


@jit
def edit(logits, first, last, edit_tokens, edit_values, start, TILE: tl.constexpr):
    """Add the entries first:last of the list that lie in tokens start:start + TILE. Tokens of a row are distinct."""
    for place in range(first, last, EDITS):
        entry = place + tl.arange(0, EDITS)
        token = tl.load(edit_tokens + entry, mask=entry < last, other=-1)
        mine = (token >= start) & (token < start + TILE)
        value = tl.load(edit_values + entry, mask=mine, other=0.0)
        tl.store(logits + token, tl.load(logits + token, mask=mine, other=0.0) + value, mask=mine)


@jit
def adjust_kernel(
    logits, rows, seen, seen_slots, edit_starts, edit_tokens, edit_values, masks, mask_slots,
    adjusted, best, raw_best, faults, logits_stride, VOCAB: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A program per row and block: adjusted logits; the best token, raw and adjusted; whether NaN or +inf is there."""
    await_inputs()
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = block * TILE
    token = start + tl.arange(0, TILE)
    inside = token < VOCAB
    raw = tl.load(logits + row * logits_stride + token, mask=inside, other=NEGATIVE_INFINITY).to(tl.float32)
    place = row * tl.num_programs(1) + block
    tl.store(raw_best + place, tl.max(tl.where(inside, ranked(raw, token), LOWEST_RANK), 0))
    value = raw
    if integer(rows, row, TARGET) < 0:
        slot = tl.load(seen_slots + row).to(tl.int64)
        if slot >= 0:
            counts = tl.load(seen + slot * VOCAB + token, mask=inside, other=0)
            value = penalised(
                value, counts, real(rows, row, REPETITION), real(rows, row, FREQUENCY), real(rows, row, PRESENCE)
            )
        slot = tl.load(mask_slots + row).to(tl.int64)
        if slot >= 0:
            words: tl.constexpr = (VOCAB + 31) // 32
            value = tl.where(allowed(masks + slot * words, token, inside), value, NEGATIVE_INFINITY)
        out = adjusted + row * VOCAB
        tl.store(out + token, value, mask=inside)
        first, last = tl.load(edit_starts + row), tl.load(edit_starts + row + 1)
        if first < last:
            # Another thread stored what this one edits, and reads what it has edited.
            tl.debug_barrier()
            edit(out, first, last, edit_tokens, edit_values, start, TILE)
            tl.debug_barrier()
            value = tl.load(out + token, mask=inside, other=NEGATIVE_INFINITY)
    tl.store(best + place, tl.max(tl.where(inside, ranked(value, token), LOWEST_RANK), 0))
    sound = (raw < float("inf")) & (value < float("inf"))
    tl.store(faults + place, 1 - tl.min(sound.to(tl.int32), 0))
