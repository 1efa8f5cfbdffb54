"""A model's tokenizer for the server: prompts to ids, ids to text; every refusal is an `ApiError`.

Blocking and free of trio: the tokenizer actor calls it in its own thread. Single texts go through the batch calls too,
because `encode` and `decode` hold the GIL for their whole run: decoding a million ids would stop all streams for 0.6 s.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from ...models.checkpoint.text.text_files import read_text_files
from ...models.errors import CheckpointError
from ...protocol.errors import ApiError, context_exceeded
from ...protocol.grammars import GrammarSource
from ...protocol.requests import ChatPrompt, Generate, Prompt, TextPrompt, Thinking, TokenPrompt
from ..errors import EngineLoadError
from .call_grammar import call_grammar, grammar_tokens
from .chat_templates import ChatTemplates, choose_templates
from .control_tokens import ControlTokens, Marks
from .fill_in_middle import fill_in_prompt
from .output_format import output_format
from .vocabulary import Vocabulary

# The library's thread pool would compete with the step's threads for cores; the tokenizer uses one thread.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

_ANY_LENGTH: Final = 2**31  # of a text that is cut: its body is bounded
_SPACE_TOKENS: Final = 4  # behind a mark that opens the thoughts, at the end of a prompt


class TextTokenizer:
    """The tokenizer, its vocabulary's bytes and the chat templates."""

    def __init__(self, tokenizer: Tokenizer, templates: ChatTemplates | None) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary(tokenizer)
        self.templates = templates
        source = templates.source if templates else ""
        self._control = ControlTokens(tokenizer, source)
        takes_tools = templates is not None and templates.takes_tools
        self.format = output_format(source, self.vocabulary.added.values(), takes_tools=takes_tools)
        special = ((id, self.vocabulary.added[id]) for id in self.vocabulary.special)
        self._grammar_tokens = grammar_tokens(tokenizer)
        self.marks: dict[int, str] = {id: text for id, text in special if text in self.format.marks}

    def call_grammar(self, request: Generate) -> GrammarSource | None:
        """What the request's tools make of its grammar; None if they change nothing. Raises ApiError (400)."""
        use, prompt = request.tool_use, request.prompts[0]
        if use is None or not isinstance(prompt, ChatPrompt):
            return None
        return call_grammar(prompt.tools, use, self.format, self._grammar_tokens, request.grammar_source)

    def thinking(self, prompt: Prompt, ids: tuple[int, ...]) -> Thinking | None:
        """How the answer to a prompt marks its thoughts; None if this model marks none."""
        marks = self.format.thoughts
        if marks is None or not isinstance(prompt, ChatPrompt):
            return None
        begin, end = ((*self.tokenizer.encode(mark, add_special_tokens=False).ids,) for mark in marks)
        tail = self.tokenizer.decode(ids[-len(begin) - _SPACE_TOKENS :], skip_special_tokens=False).rstrip()
        said = prompt.messages[-1].content or "" if prompt.continue_final_message else ""
        inside = tail.endswith(marks.begin) or said.rfind(marks.begin) > said.rfind(marks.end)
        return Thinking(begin=begin, end=end, open=inside)

    def encode(self, prompt: Prompt, *, context_length: int, vocab_size: int) -> tuple[int, ...]:
        """The ids of a prompt, each inside the model's vocabulary."""
        match prompt:
            case TokenPrompt(token_ids=ids):
                _check_ids(ids, vocab_size)
                return ids
            case TextPrompt(text=text, suffix=suffix, add_special_tokens=special) if suffix:
                self._check_size(text + suffix, "prompt", context_length)
                prepends = self.vocabulary.strips_first_space
                filled = fill_in_prompt(self.tokenizer, text, suffix, prepends_space=prepends)
                whole = (*(self._affixes()[0] if special else ()), *filled)
                _check_ids(whole, vocab_size)
                return whole
            case TextPrompt(text=text, add_special_tokens=special):
                return self._encode(text, "prompt", context_length, vocab_size, add_special_tokens=special)
            case ChatPrompt(add_special_tokens=special):
                if self.templates is None:
                    message = "this model has no chat template; use /v1/completions with the prompt written out"
                    raise ApiError("invalid_messages", message, param="messages")
                marks = Marks(self._control)
                text = self.templates.of(prompt).render(prompt, marks)
                return self._encode(
                    text, "messages", context_length, vocab_size, add_special_tokens=special, mark=marks.mark
                )

    def encode_pooled(
        self, prompt: Prompt, *, context_length: int, vocab_size: int, most: int | None
    ) -> tuple[tuple[int, ...], int]:
        """The ids of a text or a pair with its special tokens, and where the second text begins (0: there is none).

        With `most` only that many stay: what is behind is cut off, but for the special tokens at the end.
        """
        size = context_length if most is None else _ANY_LENGTH
        if not isinstance(prompt, TextPrompt) or prompt.second is None:
            ids = self.encode(prompt, context_length=size, vocab_size=vocab_size)
            return (ids if most is None else self.truncate(prompt, ids, most, "right")), 0
        self._check_size(prompt.text + prompt.second, "prompt", size)
        encoding = self.tokenizer.encode_batch_fast([(prompt.text, prompt.second)])[0]
        ids, second = tuple(encoding.ids), encoding.type_ids.index(1) if 1 in encoding.type_ids else 0
        if most is not None and len(ids) > most:
            behind = self._affixes()[1]
            ids = (*ids[: max(most - len(behind), 0)], *behind)[:most]
        _check_ids(ids, vocab_size)
        return ids, second if second < len(ids) else 0

    def banned_sequences(self, words: Iterable[str]) -> Iterator[tuple[int, ...]]:
        """The token sequences that spell these words, alone and behind a space, as vLLM finds them.

        The one behind a space is another only if it has as many tokens and begins differently: else the space is a
        token of its own, and the word behind it is the same.
        """
        for word in words:
            text = word.lstrip()
            alone, behind = (self._ids_of(prefix + text) for prefix in ("", " "))
            if not alone:
                message = f"bad_words: {word!r} has no token that could be banned."
                raise ApiError("invalid_value", message, param="bad_words")
            yield alone
            if len(behind) == len(alone) and behind[0] != alone[0]:
                yield behind

    def _ids_of(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def decode(self, ids: tuple[int, ...], *, vocab_size: int) -> str:
        _check_ids(ids, vocab_size, param="tokens")
        return self.tokenizer.decode_batch([list(ids)], skip_special_tokens=False)[0]

    def _encode(
        self, text: str, param: str, context_length: int, vocab_size: int, *, add_special_tokens: bool, mark: str = ""
    ) -> tuple[int, ...]:
        self._check_size(text, param, context_length, mark)
        if mark:
            ids = self._with_prefix(self._control.encode(text, mark, context_length), add_special_tokens)
            if len(ids) > context_length:
                problem = f"The messages have more than {context_length} tokens: shorten them."
                raise context_exceeded(context_length, problem, param=param)
        else:
            ids = tuple(self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)
        if ids:
            _check_ids(ids, vocab_size, param=param)
        return ids

    def _check_size(self, text: str, param: str, context_length: int, mark: str = "") -> None:
        try:
            size = len(text.encode()) - text.count(mark) * len(mark) * bool(mark)
        except UnicodeEncodeError:
            message = "the text holds a lone surrogate, which is no character"
            raise ApiError("invalid_value", message, param=param) from None
        # Every token covers a bounded number of bytes, so a text that cannot fit is refused before the work.
        if size > context_length * self.vocabulary.max_token_bytes:
            problem = f"A text of {size} bytes cannot fit: shorten it."
            raise context_exceeded(context_length, problem, param=param)

    def _with_prefix(self, ids: list[int], add_special_tokens: bool) -> tuple[int, ...]:
        """With what the tokenizer puts before and behind every text."""
        if not add_special_tokens:
            return tuple(ids)
        before, behind = self._affixes()
        return (*before, *ids, *behind)

    def _affixes(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before and behind every text."""
        bare, dressed = (
            self.tokenizer.encode_batch_fast(["x"], add_special_tokens=special)[0].ids for special in (False, True)
        )
        before = next(at for at in range(len(dressed)) if dressed[at : at + len(bare)] == bare)
        return dressed[:before], dressed[before + len(bare) :]

    def truncate(self, prompt: Prompt, ids: tuple[int, ...], most: int, side: str) -> tuple[int, ...]:
        """The last `most` ids of a prompt or, cut on the right, the first. What the tokenizer adds to a text stays."""
        if len(ids) <= most:
            return ids
        added = not isinstance(prompt, TokenPrompt) and prompt.add_special_tokens
        before, behind = self._affixes() if added else ([], [])
        body, room = ids[len(before) : len(ids) - len(behind)], max(most - len(before) - len(behind), 0)
        return (*before, *(body[:room] if side == "right" else body[len(body) - room :]), *behind)[:most]


def _check_ids(ids: tuple[int, ...], vocab_size: int, param: str = "prompt") -> None:
    for id in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= id < vocab_size:
            message = f"token id {id} is outside the model's vocabulary, 0 to {vocab_size - 1}"
            raise ApiError("invalid_token_id", message, param=param)


def load_text_tokenizer(model: str, chat_template: str | None = None) -> TextTokenizer:
    """Read the tokenizer and the chat templates of a checkpoint folder or a GGUF file. Raises EngineLoadError."""
    try:
        files = read_text_files(Path(model))
        templates = choose_templates(files.templates, files.special_tokens, chat_template)
    except CheckpointError as error:
        raise EngineLoadError(error.code, f"{model}: {error}") from error
    try:
        return TextTokenizer(files.tokenizer, templates)
    except Exception as error:  # the library raises plain Exception for anything it cannot do
        raise EngineLoadError("invalid_checkpoint", f"{model}: its tokenizer cannot be used: {error}") from error
