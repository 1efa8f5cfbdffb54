"""A model's tokenizer for the server: prompts to ids, ids to text; every refusal is an `ApiError`.

Blocking and free of trio: the tokenizer actor calls it in its own thread. Single texts go through the batch calls too,
because `encode` and `decode` hold the GIL for their whole run: decoding a million ids would stop all streams for 0.6 s.
"""

import os
from pathlib import Path

from tokenizers import Tokenizer

from ...protocol.errors import ApiError
from ...protocol.requests import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from ..errors import EngineLoadError
from .chat_template import ChatTemplate, load_chat_template
from .vocabulary import Vocabulary

# The library's thread pool would compete with the step's threads for cores; the tokenizer uses one thread.
os.environ["TOKENIZERS_PARALLELISM"] = "false"


class TextTokenizer:
    """The tokenizer, its vocabulary's bytes and the chat template."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary(tokenizer)
        self.template = template

    def encode(self, prompt: Prompt, *, context_length: int, vocab_size: int) -> tuple[int, ...]:
        """The ids of a prompt, each inside the model's vocabulary."""
        match prompt:
            case TokenPrompt(token_ids=ids):
                _check_ids(ids, vocab_size)
                return ids
            case TextPrompt(text=text):
                # Raw text gets the tokenizer's usual prefix (a beginning-of-text id).
                return self._encode(text, "prompt", context_length, vocab_size, add_special_tokens=True)
            case ChatPrompt():
                if self.template is None:
                    message = "this model has no chat template; use /v1/completions with the prompt written out"
                    raise ApiError("invalid_messages", message, param="messages")
                # A template writes all special tokens itself.
                text = self.template.render(prompt)
                return self._encode(text, "messages", context_length, vocab_size, add_special_tokens=False)

    def decode(self, ids: tuple[int, ...], *, vocab_size: int) -> str:
        _check_ids(ids, vocab_size, param="tokens")
        return self.tokenizer.decode_batch([list(ids)], skip_special_tokens=False)[0]

    def _encode(
        self, text: str, param: str, context_length: int, vocab_size: int, *, add_special_tokens: bool
    ) -> tuple[int, ...]:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            message = "the text holds a lone surrogate, which is no character"
            raise ApiError("invalid_value", message, param=param) from None
        # Every token covers a bounded number of bytes, so a text that cannot fit is refused before the work.
        if size > context_length * self.vocabulary.max_token_bytes:
            message = f"this model's context length is {context_length} tokens; a text of {size} bytes cannot fit in it"
            raise ApiError("context_length_exceeded", message, param=param)
        ids = tuple(self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)
        if ids:
            _check_ids(ids, vocab_size, param=param)
        return ids


def _check_ids(ids: tuple[int, ...], vocab_size: int, param: str = "prompt") -> None:
    for id in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= id < vocab_size:
            message = f"token id {id} is outside the model's vocabulary, 0 to {vocab_size - 1}"
            raise ApiError("invalid_token_id", message, param=param)


def load_text_tokenizer(model: str) -> TextTokenizer:
    """Read the checkpoint folder's tokenizer and chat template."""
    folder = Path(model)
    file = folder / "tokenizer.json"
    if not file.is_file():
        message = f"{file} is missing; a checkpoint needs the tokenizer.json that the tokenizers library writes"
        raise EngineLoadError("invalid_checkpoint", message)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception for anything it cannot read
        raise EngineLoadError("invalid_checkpoint", f"{file} cannot be read: {error}") from error
    return TextTokenizer(tokenizer, load_chat_template(folder))
