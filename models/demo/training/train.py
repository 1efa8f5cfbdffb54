"""Train the demo model: `python -m triolet.models.demo.training.train --work DIR --minutes 100`.

The work folder holds the tokenizer (made on the first run) and one training state: weights, optimizer, position in the
corpus and the minutes trained. Running the command again continues from there; a TERM signal saves and ends the run.
The learning rate is constant, then falls linearly over the last part of the planned minutes; both may be changed on a
later run. Each save also exports a checkpoint folder, and `--start` begins with such a folder's tokenizer and weights.

One process per core, one thread each: they synchronise twice per step instead of after every operation. On cores shared
with other work that is 1.5 times as fast.
"""

import argparse
import os
import shutil
import signal
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import FrameType

import safetensors.torch
import torch
import torch.multiprocessing
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from .corpus import conversation
from .export import export
from .heldout import kept_out
from .network import Network, NetworkShape, import_tensors
from .optimizer import FASTEST, Optimizer, new_gradients, new_momenta, shared_zeros
from .pack import BLOCK, Packer
from .tokenizer import plain, train_tokenizer

TOKENIZER_CONVERSATIONS = 60_000
WARMUP_STEPS = 50
# The loss counts every answer token and this share of the prompt tokens: the model should know requests, but its job is
# to answer. The head, a sixth of the work, is computed only for the tokens that count.
PROMPT_SHARE = 0.1
BARRIER_SECONDS = 150.0  # compiling takes a minute; after this long, the other processes are gone


@dataclass(slots=True)
class TrainingProgress:
    """The progress of training, from which a later run continues."""

    minutes: float = 0.0
    tokens: int = 0
    steps: int = 0
    index: int = 0


@dataclass(frozen=True, slots=True)
class Shared:
    """Data shared by the processes of a run. `control` is (learning-rate factor, 1 in the last step)."""

    network: Network
    momenta: list[Tensor]
    gradients: Tensor
    control: Tensor
    barrier: Barrier


def rate(minutes: float, planned: float, decay: float) -> float:
    """The factor on both learning rates: 1, then linearly to 0.02 over the last `decay` of the planned minutes."""
    left = (planned - minutes) / (planned * decay)
    return min(1.0, max(0.02, left))


def tokenizer_in(work: Path, seed: int, skipped: frozenset[bytes]) -> Tokenizer:
    path = work / "tokenizer.json"
    if not path.exists():
        print(f"training the tokenizer on {TOKENIZER_CONVERSATIONS} conversations", flush=True)
        texts = (plain(conversation(seed + 1, index, skipped)) for index in range(TOKENIZER_CONVERSATIONS))
        train_tokenizer(texts).save(str(path))
    return Tokenizer.from_file(str(path))


class TrainingProcess:
    """One process of a run: a pass over its own rows, then its part of the update."""

    def __init__(self, options: argparse.Namespace, shared: Shared, rank: int, index: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(options.seed + rank)
        self.options, self.shared = options, shared
        tokenizer = Tokenizer.from_file(str(options.work / "tokenizer.json"))
        self.packer = Packer(tokenizer, options.seed, index + rank * BLOCK, kept_out(), options.workers)
        self.optimizer = Optimizer(shared.network, rank, options.workers, shared.momenta, shared.gradients)
        self.hidden = shared.network.hidden if options.eager else torch.compile(shared.network.hidden)
        self.last = False

    def step(self) -> float:
        """Run one step; returns the mean loss of the answers in this process's rows."""
        inputs, targets, answers = self.packer.rows(self.options.batch // self.options.workers, self.options.context)
        counted = answers | (torch.rand(answers.shape) < PROMPT_SHARE)
        with torch.autocast("cpu", torch.bfloat16, enabled=FASTEST is torch.bfloat16):
            logits = self.shared.network.head(self.hidden(inputs)[counted])
        each = F.cross_entropy(logits.float(), targets[counted], reduction="none")
        each.mean().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimizer.hand_in()
        self.shared.barrier.wait(BARRIER_SECONDS)
        # Read between the barriers: the first process writes outside them, when the others may be late.
        self.last = bool(self.shared.control[1])
        self.optimizer.update(float(self.shared.control[0]))
        self.shared.barrier.wait(BARRIER_SECONDS)
        return float(each.detach()[answers[counted]].mean())


def follow(options: argparse.Namespace, shared: Shared, rank: int, index: int) -> None:
    """The loop of every process but the first."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the first process decides when a run ends
    worker = TrainingProcess(options, shared, rank, index)
    while not worker.last:
        worker.step()


def save(path: Path, network: Network, optimizer: Optimizer, at: TrainingProgress) -> None:
    partial = path.with_suffix(".partial")
    counters = {"minutes": at.minutes, "tokens": at.tokens, "steps": at.steps, "index": at.index}
    torch.save({"network": network.state_dict(), "optimizer": optimizer.state(), **counters}, partial)
    os.replace(partial, path)


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    if options.start is not None and not (work / "tokenizer.json").exists():
        shutil.copyfile(options.start / "tokenizer.json", work / "tokenizer.json")
    tokenizer = tokenizer_in(work, options.seed, kept_out())
    network = Network(NetworkShape(vocabulary=tokenizer.get_vocab_size())).share_memory()
    if options.start is not None:
        import_tensors(network, safetensors.torch.load_file(options.start / "model.safetensors"))
    context = torch.multiprocessing.get_context("spawn")
    control = shared_zeros(2)
    momenta, gradients = new_momenta(network), new_gradients(network, options.workers)
    shared = Shared(network, momenta, gradients, control, context.Barrier(options.workers))
    at = TrainingProgress()
    state_path = work / "state.pt"
    stored = torch.load(state_path, weights_only=True) if state_path.exists() else None
    if stored is not None:
        at = TrainingProgress(stored["minutes"], stored["tokens"], stored["steps"], stored["index"])
        network.load_state_dict(stored["network"])
        print(f"going on after {at.minutes:.1f} minutes, {at.tokens / 1e6:.2f}M tokens", flush=True)
    others = [
        context.Process(target=follow, args=(options, shared, rank, at.index), daemon=True)
        for rank in range(1, options.workers)
    ]
    for process in others:
        process.start()
    first = TrainingProcess(options, shared, 0, at.index)
    if stored is not None:
        first.optimizer.load(stored["optimizer"])
    ended = False

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    compiled = False
    losses: list[float] = []
    saved = shown = time.monotonic()
    shown_tokens = at.tokens
    while not first.last:
        began = time.monotonic()
        factor = options.rate * rate(at.minutes, options.minutes, options.decay)
        factor *= min(1.0, (at.steps + 1) / WARMUP_STEPS)
        control[0] = factor
        control[1] = float(ended or at.minutes >= options.minutes)
        losses.append(first.step())
        now = time.monotonic()
        at.minutes += (now - began) / 60 if compiled else 0.0
        compiled = True  # the first step of a run compiles, which is not training
        at.steps += 1
        at.tokens += options.batch * options.context
        at.index = first.packer.index
        if at.steps % 20 == 0:
            speed = (at.tokens - shown_tokens) / (now - shown)
            print(
                f"step {at.steps}  {at.minutes:6.1f}/{options.minutes:.0f} min  {at.tokens / 1e6:6.2f}M tokens"
                f"  {speed:5.0f}/s  answer loss {sum(losses) / len(losses):.4f}  rate {factor:.2f}",
                flush=True,
            )
            losses.clear()
            shown, shown_tokens = now, at.tokens
        if now - saved > options.save_minutes * 60:
            save(state_path, network, first.optimizer, at)
            export(network, tokenizer, options.export)
            saved = time.monotonic()
    for process in others:
        process.join()
    save(state_path, network, first.optimizer, at)
    export(network, tokenizer, options.export)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m triolet.models.demo.training.train", description=__doc__)
    checkpoint = Path(__file__).resolve().parent.parent / "checkpoint"
    parser.add_argument("--work", type=Path, required=True, help="folder of the tokenizer and the training state")
    begin = "exported checkpoint to begin with where the work folder has no state yet; take a --seed it has not seen"
    parser.add_argument("--start", type=Path, help=begin)
    parser.add_argument("--export", type=Path, default=checkpoint, help="checkpoint folder to write")
    parser.add_argument("--minutes", type=float, default=100.0, help="planned minutes, all runs together (100)")
    parser.add_argument("--decay", type=float, default=0.9, help="part of them over which the rate falls (0.9)")
    parser.add_argument("--rate", type=float, default=1.0, help="factor on both learning rates (1)")
    parser.add_argument("--batch", type=int, default=24, help="rows per step, all processes together (24)")
    parser.add_argument("--context", type=int, default=256, help="tokens per row (256)")
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each (2)")
    parser.add_argument("--eager", action="store_true", help="do not compile: a minute sooner, a third slower")
    parser.add_argument("--save-minutes", type=float, default=4.0, help="minutes between checkpoints (4)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the corpus and of the first weights (1)")
    return parser


def main() -> None:
    train(arguments().parse_args())


if __name__ == "__main__":
    main()
