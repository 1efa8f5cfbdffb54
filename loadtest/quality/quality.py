"""What a precision costs on given texts: perplexity and divergence from float32, of the same model by the same runner.

    python -m triolet.loadtest.quality.quality MODEL --quantize int8 int4 bfloat16 [--text FILE] [--json]

- perplexity: from the log probabilities that the worker answers for the tokens of a prompt (`prompt_logprobs`),
- KL divergence: of float32's distribution of the next token from the variant's, raw logits, in nats a token,
- same choice: share of places where both find the same token most probable.

Without --text the texts are the held-out conversations of the bundled model, as the model's own chat template writes
them. What quantising costs on a model of random weights is its loss on noise: an upper bound of little meaning.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triolet.actors.tokenizer.text_tokenizer import TextTokenizer, load_text_tokenizer
from triolet.loadtest.heldout import HELD_OUT, read_instances
from triolet.loadtest.quality.logits import load_on_cpu, logits_of
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.stepper import CpuStepper
from triolet.protocol.requests import ChatMessage, ChatPrompt, TextPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import BLOCK_SIZE
from triolet.protocol.steps import Chunk, SequenceRecord, Step

SCATTER = 829  # a prime: its multiples visit every line once, neighbours far apart
WINDOW = 256  # tokens of a text file that are one sequence
VARIANTS: dict[str, dict[str, str]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantize": "int8"},
    "int4": {"quantize": "int4"},
    "int4-128": {"quantize": "int4-128"},
}
Windows = list[list[int]]
Float64Array = npt.NDArray[np.float64]


def windows_of_text(tokenizer: TextTokenizer, text: str, tokens: int, vocab_size: int) -> Windows:
    """The first `tokens` tokens of a text, cut into windows."""
    prompt = TextPrompt(text=text)
    ids = list(tokenizer.encode(prompt, context_length=len(text.encode()), vocab_size=vocab_size))[:tokens]
    cut = [ids[first : first + WINDOW] for first in range(0, len(ids), WINDOW)]
    return [window for window in cut if len(window) > 1]


def windows_of_conversations(tokenizer: TextTokenizer, file: Path, tokens: int, vocab_size: int) -> Windows:
    """Conversations with their expected answers from all over the file, which is in order of families."""
    exact = [instance for instance in read_instances(file, None) if instance.check == "exact"]
    found: Windows = []
    for place in range(len(exact)):
        if sum(map(len, found)) >= tokens:
            break
        instance = exact[place * SCATTER % len(exact)]
        messages = (*instance.messages, ChatMessage(role="assistant", content=instance.expected))
        prompt = ChatPrompt(messages=messages, add_generation_prompt=False)
        found.append(list(tokenizer.encode(prompt, context_length=1 << 20, vocab_size=vocab_size)))
    return found


def served_logprobs(runner: CpuRunner, windows: Windows) -> Float64Array:
    """Log probabilities of every token but each window's first, as the worker answers them."""
    stepper = CpuStepper(runner)
    blocks = tuple(range(runner.sizes.num_blocks))
    found: list[float] = []
    for sequence, window in enumerate(windows):
        record = SequenceRecord(
            sequence=sequence, tokens=tuple(window), prompt_tokens=len(window), stop_token_ids=(),
            sampling=Sampling(temperature=0.0, prompt_logprobs=0),
        )  # fmt: skip
        used = blocks[: -(-len(window) // BLOCK_SIZE)]
        chunk = Chunk(sequence=sequence, start=0, count=len(window), blocks=used, prompt_logprobs=True)
        (result,) = stepper.begin_step(Step(step=sequence, chunks=(chunk,), new=(record,))).wait().rows
        stepper.begin_step(Step(step=sequence, chunks=(), dropped=(sequence,)))
        assert len(result.prompt_logprobs) == len(window) - 1, "one for every token that another precedes"
        found += [score.logprob for score in result.prompt_logprobs if score.logprob is not None]
    return np.array(found)


def log_softmax(logits: npt.NDArray[np.float32]) -> Float64Array:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    normalised: Float64Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


def divergences(reference: CpuRunner, variant: CpuRunner, windows: Windows) -> tuple[Float64Array, float]:
    """KL(float32 || variant) of every row in nats, and the share of rows with the same most probable token."""
    found: list[Float64Array] = []
    same = 0
    for window in windows:
        theirs = logits_of(variant, window)
        for first, exact in logits_of(reference, window):
            other_first, other = next(theirs)
            assert (other_first, other.shape) == (first, exact.shape), "both cut a text alike"
            p, q = log_softmax(exact), log_softmax(other)
            found.append((np.exp(p) * (p - q)).sum(axis=1))
            same += int((p.argmax(axis=1) == q.argmax(axis=1)).sum())
    rows = np.concatenate(found)
    return rows, same / len(rows)


def measure(model: Path, variants: dict[str, dict[str, Any]], windows: Windows, text: str) -> list[dict[str, Any]]:
    """Each variant beside float32: both are loaded at the same time, a third never."""
    longest = max(map(len, windows))
    reference = load_on_cpu(model, {"dtype": "float32", "quantize": "none"}, longest)
    expected = perplexity(served_logprobs(reference, windows))
    note = ""
    if expected > reference.spec.vocab_size / 2:
        note = (
            f"The float32 model's perplexity on these texts, {expected:,.0f}, is that of guessing among the "
            f"vocabulary's {reference.spec.vocab_size:,} tokens, as random weights do: the losses are those on noise."
        )
    results: list[dict[str, Any]] = []
    for name, settings in variants.items():
        variant = load_on_cpu(model, settings, longest)
        rows, same = divergences(reference, variant, windows)
        results.append({
            "name": name, "tokens": len(rows), "perplexity": perplexity(served_logprobs(variant, windows)),
            "reference_perplexity": expected, "kl_mean": float(rows.mean()),
            "kl_p99": float(np.quantile(rows, 0.99)), "kl_max": float(rows.max()), "same_choice": same,
            "text": text, "note": note,
        })  # fmt: skip
        variant.close()
    reference.close()
    return results


def perplexity(logprobs: Float64Array) -> float:
    return float(np.exp(-logprobs.mean()))


def table(results: Sequence[dict[str, Any]]) -> str:
    lines = [f"{'variant':12} {'perplexity':>12} {'float32':>12} {'KL mean':>10} {'p99':>10} {'max':>10} {'same':>8}"]
    for row in results:
        figures = f"{row['perplexity']:12.5g} {row['reference_perplexity']:12.5g} {row['kl_mean']:10.3g}"
        lines.append(
            f"{row['name']:12} {figures} {row['kl_p99']:10.3g} {row['kl_max']:10.3g} {row['same_choice']:8.2%}"
        )
    lines += [f"{results[0]['tokens']} tokens of {results[0]['text']}", *{row["note"]: None for row in results}]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--quantize", nargs="+", choices=VARIANTS, default=["bfloat16", "int8", "int4"])
    parser.add_argument("--kv-cache-dtype", default="auto", help="of the variants; float32 keeps its own")
    parser.add_argument("--variants", help="instead of both: JSON of names and the settings of each")
    parser.add_argument("--text", type=Path, help="a text file (the held-out conversations)")
    parser.add_argument("--tokens", type=int, default=4096, help="about so many (4096)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chosen = {name: {**VARIANTS[name], "kv_cache_dtype": options.kv_cache_dtype} for name in options.quantize}
    variants: dict[str, dict[str, Any]] = json.loads(options.variants) if options.variants else chosen
    tokenizer = load_text_tokenizer(str(options.model))
    size = tokenizer.tokenizer.get_vocab_size()
    if options.text:
        windows = windows_of_text(tokenizer, options.text.read_text(), options.tokens, size)
        told = options.text.name
    elif tokenizer.templates is None:
        parser.error("this model has no chat template to write the held-out conversations with; pass --text FILE")
    else:
        windows = windows_of_conversations(tokenizer, HELD_OUT, options.tokens, size)
        told = "the held-out conversations"
    results = measure(options.model, variants, windows, told)
    print(json.dumps(results) if options.json else table(results))


if __name__ == "__main__":
    main()
