"""Accuracy of a training state on held-out instances, in process.

An interim figure that says which family needs a larger share. The table of the model card comes from
`python -m triolet.loadtest.accuracy`, which asks a server.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from .heldout import HeldOutTask, instances
from .network import Network, NetworkShape
from .tokenizer import prompt_text, token_id

LONGEST_ANSWER = 160  # tokens; a story has about 80


def right(instance: HeldOutTask, answer: str) -> bool:
    if instance["check"] == "regex":
        return re.fullmatch(instance["expected"], answer) is not None
    return answer == instance["expected"]


def answers(network: Network, tokenizer: Tokenizer, batch: Sequence[HeldOutTask]) -> list[str]:
    prompts = [prompt_text([(message["role"], message["content"]) for message in item["messages"]]) for item in batch]
    ids = [encoding.ids for encoding in tokenizer.encode_batch(prompts)]
    stop = token_id(tokenizer, "<|im_end|>")
    return [tokenizer.decode(tokens) for tokens in network.complete(ids, stop, LONGEST_ANSWER)]


def load(work: Path) -> tuple[Network, Tokenizer, float]:
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    state = torch.load(work / "state.pt", weights_only=True)
    network = Network(NetworkShape(vocabulary=tokenizer.get_vocab_size()))
    network.load_state_dict(state["network"])
    # The served weights are bfloat16: what is measured here is rounded in the same way.
    for parameter in network.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return network, tokenizer, float(state["tokens"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m triolet.models.demo.training.evaluate", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="work folder of the trainer")
    parser.add_argument("--limit", type=int, default=20, help="instances per family (20)")
    parser.add_argument("--families", default="", help="only these, separated by commas")
    parser.add_argument("--wrong", type=int, default=2, help="wrong answers to show per family (2)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    network, tokenizer, tokens = load(options.work)
    print(f"{tokens / 1e6:.2f}M tokens trained")
    wanted = [family.strip() for family in options.families.split(",") if family.strip()]
    groups: dict[str, list[HeldOutTask]] = defaultdict(list)
    for item in instances():
        if (not wanted or item["family"] in wanted) and len(groups[item["family"]]) < options.limit:
            groups[item["family"]].append(item)
    shares: list[float] = []
    for family, group in groups.items():
        told = answers(network, tokenizer, group)
        outcome = [right(item, answer) for item, answer in zip(group, told, strict=True)]
        split = {
            wording: [ok for item, ok in zip(group, outcome, strict=True) if item["wording"] == wording]
            for wording in ("trained", "unseen")
        }
        shares.append(sum(outcome) / len(outcome))
        parts = "  ".join(f"{wording} {sum(oks) / len(oks):.2f}" for wording, oks in split.items() if oks)
        print(f"{family:<12} {shares[-1]:.2f}   {parts}", flush=True)
        wrong = [(item, answer) for item, answer, ok in zip(group, told, outcome, strict=True) if not ok]
        for item, answer in wrong[: options.wrong]:
            print(f"    {item['messages'][-1]['content']!r}\n      -> {answer!r}\n      != {item['expected']!r}")
    print(f"mean of the families {sum(shares) / len(shares):.3f}")


if __name__ == "__main__":
    main()
