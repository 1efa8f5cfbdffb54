"""The text of one choice: ids in, text out, cut at the first stop string. Pure.

Contract: the texts of all deltas together equal decoding all tokens at once and cutting there, however the tokens
arrived. Only text that may still become a character or a stop string is held back; it is released at the end. Exactly
one delta counts each kept token, even while its text is held: flow control counts tokens.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from ...protocol.events import TokenLogprob, TopLogprob
from ...protocol.requests import Generate, TextPrompt
from ..tokenizer.text_tokenizer import TextTokenizer
from .incremental_text import IncrementalText, incremental_text
from .stop_strings import StopScanner


class TextDelta(Struct, frozen=True, kw_only=True):
    """The text that some tokens added. `stop` is the stop string that ended the choice after `kept` of these tokens."""

    text: str
    kept: int
    logprobs: tuple[TokenLogprob, ...] = ()
    stop: str | None = None


_NOTHING: Final = TextDelta(text="", kept=0)


class ChoiceText:
    """Decoder, stop search and counters of one choice."""

    __slots__ = (
        "_characters", "_held", "_prompt", "_prompt_index", "_prompt_logprobs", "_request", "_scanner", "_text",
        "_vocabulary", "tokens",
    )  # fmt: skip

    def __init__(self, request: Generate, prompt: tuple[int, ...], prompt_index: int, tokenizer: TextTokenizer) -> None:
        self._request = request
        self._prompt = prompt
        self._prompt_index = prompt_index
        self._vocabulary = tokenizer.vocabulary
        self._text = incremental_text(
            tokenizer.tokenizer,
            tokenizer.vocabulary,
            () if request.echo else prompt,
            skip_special=request.skip_special_tokens,
        )
        self._scanner = StopScanner(request.stop) if request.stop else None
        self._prompt_logprobs: list[TokenLogprob] = []
        self._held = ""
        self._characters = 0  # decoded so far: the text offset of the next token
        self.tokens = 0  # generated and kept, without those given to `plain`

    @property
    def plain(self) -> IncrementalText | None:
        """A decoder that gives the same text as `add_tokens`, for all tokens but the last ones.

        None if the text may be cut, or if token offsets are needed. Tokens given to it are not counted here: only the
        search for stop strings needs their number.
        """
        sampling = self._request.sampling
        simple = self._scanner is None and sampling.logprobs is None and sampling.prompt_logprobs is None
        return self._text if simple else None

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self._request.echo and self._request.sampling.prompt_logprobs is not None

    def add_prompt_logprobs(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Keep them until the echo: they come with each chunk of the prompt."""
        self._prompt_logprobs.extend(logprobs)

    def echo(self) -> TextDelta:
        """The prompt's text, and its log probabilities if requested. Counts no token: none was generated."""
        source = self._request.prompts[self._prompt_index]
        sent = source.text if isinstance(source, TextPrompt) else None
        pieces: list[str] = []
        offsets: list[int] = []
        for id in self._prompt:
            offsets.append(self._characters)
            piece = self._text.decode((id,))
            if sent is not None and id in self._vocabulary.special:
                # The text goes back as it came: with the special tokens it spells, without one added in front.
                spelt = self._vocabulary.added[id]
                piece = spelt if sent.startswith(spelt, self._characters) else ""
            pieces.append(piece)
            self._characters += len(piece)
        text = "".join(pieces) if sent is None else sent
        self._characters = len(text)  # a tokenizer that normalises returns other text than it got
        if not self.wants_prompt_logprobs:
            return TextDelta(text=text, kept=0)
        # The runner scores the token after each token; nothing precedes the prompt's first.
        first = TokenLogprob(token_id=self._prompt[0], logprob=None)
        missing_first = len(self._prompt_logprobs) < len(self._prompt)
        scored = [first, *self._prompt_logprobs] if missing_first else self._prompt_logprobs
        logprobs = tuple(self._spell(scores, offset) for scores, offset in zip(scored, offsets, strict=False))
        return TextDelta(text=text, kept=0, logprobs=logprobs)

    def add_tokens(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob] = (), *, last: bool = False) -> TextDelta:
        """Add generated tokens. With `last` the choice ends with them, and everything held back is released."""
        spelt: list[TokenLogprob] = []
        for place, id in enumerate(ids):
            if place < len(logprobs):
                spelt.append(self._spell(logprobs[place], self._characters))
            self.tokens += 1
            stop = self._add(self._text.decode((id,)))
            if stop is not None:
                return TextDelta(text=self._take(), kept=place + 1, logprobs=tuple(spelt), stop=stop)
        stop = None
        if last:
            stop = self._add(self._text.finish())
            return TextDelta(text=self._take(), kept=len(ids), logprobs=tuple(spelt), stop=stop)
        if not ids:
            return _NOTHING
        keep = self._scanner.held if self._scanner is not None else 0
        return TextDelta(text=self._take(keep), kept=len(ids), logprobs=tuple(spelt))

    def _add(self, text: str) -> str | None:
        """Append to the held text. Returns a stop string that this completes, after cutting the text there."""
        before = len(self._held)
        self._held += text
        self._characters += len(text)
        # Stop strings, like stop tokens, count only after `min_tokens` tokens.
        if self._scanner is None or not text or self.tokens <= self._request.sampling.min_tokens:
            return None
        match = self._scanner.scan(text)
        if match is None:
            return None
        end = before + match.end
        self._held = self._held[: end if self._request.include_stop else end - len(match.stop)]
        return match.stop

    def _take(self, keep: int = 0) -> str:
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _spell(self, scores: TokenLogprob, offset: int) -> TokenLogprob:
        """Add the tokens' bytes and the offset in the text."""
        spell = self._vocabulary.piece_bytes
        return msgspec.structs.replace(
            scores,
            text=spell(scores.token_id),
            text_offset=offset,
            top=tuple(TopLogprob(top.token_id, top.logprob, spell(top.token_id)) for top in scores.top),
        )
