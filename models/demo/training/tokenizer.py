"""The demo model's tokenizer: byte-level BPE trained on the corpus, and ChatML around it.

Digits are single tokens. A capitalised word is split from the space before it. So a name has the same tokens in a
sentence and in the quotes of a JSON value: the model copies tokens and need not translate them.
"""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .tasks.language import Conversation

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<tool_call>", "</tool_call>")  # ordinary text when decoded, one token each to the model
VOCABULARY = 2048


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d|[A-Z]+[a-z]*"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(MARKERS),
        special_tokens=list(SPECIAL),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no token {token!r}: it was not trained by this project")
    return int(found)


def pieces(conversation: Conversation) -> list[tuple[str, bool]]:
    """The conversation as the chat template writes it, cut at the start and end of answers: (text, is an answer)."""
    parts: list[tuple[str, bool]] = []
    for role, text in conversation:
        if role == "assistant":
            parts += [("<|im_start|>assistant\n", False), (text + "<|im_end|>", True), ("\n", False)]
        elif role == "text":
            parts.append((text, True))
        else:
            parts.append((f"<|im_start|>{role}\n{text}<|im_end|>\n", False))
    return parts


def plain(conversation: Conversation) -> str:
    return "".join(text for text, _ in pieces(conversation))
