"""Rows of training tokens: conversations packed end to end; each row starts with a new conversation.

Each row marks the tokens that belong to answers. The position in the stream is the index of the next conversation.
"""

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .corpus import conversation
from .tokenizer import pieces, token_id

BLOCK = 256  # conversations


class Packer:
    def __init__(
        self, tokenizer: Tokenizer, seed: int, index: int, kept_out: frozenset[bytes], stride: int = 1
    ) -> None:
        self.tokenizer, self.seed, self.index, self.kept_out = tokenizer, seed, index, kept_out
        self.stride = stride  # of several packers, each takes every stride-th block of conversations
        self.end_of_text = token_id(tokenizer, "<|endoftext|>")
        self._ready: list[tuple[list[int], list[bool]]] = []

    def _conversation(self) -> tuple[list[int], list[bool]]:
        if not self._ready:
            # In blocks, since encode_batch is many times faster than encode.
            batch = [pieces(conversation(self.seed, self.index + i, self.kept_out)) for i in range(BLOCK)]
            self.index += BLOCK * self.stride
            encoded = iter(self.tokenizer.encode_batch([text for parts in batch for text, _ in parts]))
            for parts in batch:
                ids: list[int] = []
                answer: list[bool] = []
                for _, is_answer in parts:
                    piece = next(encoded).ids
                    ids += piece
                    answer += [is_answer] * len(piece)
                self._ready.append(([*ids, self.end_of_text], [*answer, False]))
        return self._ready.pop()

    def rows(self, count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets and whether each target is part of an answer, each [count, width]."""
        tokens, answers = [], []
        for _ in range(count):
            ids: list[int] = []
            answer: list[bool] = []
            while len(ids) <= width:
                more_ids, more_answer = self._conversation()
                ids += more_ids
                answer += more_answer
            tokens.append(ids[: width + 1])
            answers.append(answer[1 : width + 1])
        table = torch.tensor(tokens)
        return table[:, :-1], table[:, 1:].contiguous(), torch.tensor(answers)
