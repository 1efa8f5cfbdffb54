"""The text of one choice: ids in, text out, cut at the first stop string. Pure.

Contract: the texts of all deltas together equal decoding all tokens at once and cutting there, however the tokens
arrived. Only text that may still become a character or a stop string is held back; it is released at the end. Exactly
one delta counts each kept token, even while its text is held: flow control counts tokens.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from ...protocol.events import Token, TokenLogprob, TopLogprob
from ...protocol.requests import Generate, TextPrompt
from ..tokenizer.stop_regex import RegexScanner
from ..tokenizer.text_tokenizer import TextTokenizer
from .incremental_text import IncrementalText, incremental_text
from .stop_strings import StopScanner


class TextDelta(Struct, frozen=True, kw_only=True):
    """The text that some tokens added. `stop` is the stop string that ended the choice after `kept` of these tokens.

    A choice that is split (read_choice.py) has `parts` instead. `enough`: it has all the calls that are wanted, and
    ends after `kept` tokens. `plain`: from now on its text is not split, and `ChoiceText.plain` may serve it.
    """

    text: str
    kept: int
    logprobs: tuple[TokenLogprob, ...] = ()
    stop: str | None = None
    parts: tuple[Token, ...] = ()
    enough: bool = False
    plain: bool = False


_NOTHING: Final = TextDelta(text="", kept=0)


class ChoiceText:
    """Decoder, stop search and counters of one choice."""

    __slots__ = (
        "_characters", "_held", "_prompt_index", "_prompt_logprobs", "_scanners", "_text", "_vocabulary", "prompt",
        "request", "tokens",
    )  # fmt: skip

    def __init__(self, request: Generate, prompt: tuple[int, ...], prompt_index: int, tokenizer: TextTokenizer) -> None:
        self.request = request
        self.prompt = prompt
        self._prompt_index = prompt_index
        self._vocabulary = tokenizer.vocabulary
        self._text = incremental_text(
            tokenizer.tokenizer,
            tokenizer.vocabulary,
            () if request.echo else prompt,
            skip_special=request.skip_special_tokens,
        )
        self._scanners = self._new_scanners()
        self._prompt_logprobs: list[TokenLogprob] = []
        self._held = ""
        self._characters = 0  # decoded so far: the text offset of the next token
        self.tokens = 0  # generated and kept, without those given to `plain`

    def _new_scanners(self) -> list[StopScanner | RegexScanner]:
        request = self.request
        scanners: list[StopScanner | RegexScanner] = [StopScanner(request.stop)] if request.stop else []
        return [*scanners, RegexScanner(request.stop_regex)] if request.stop_regex else scanners

    @property
    def plain(self) -> IncrementalText | None:
        """A decoder that gives the same text as `add_tokens`, for all tokens but the last ones.

        None if the text may be cut, or if token offsets are needed. Tokens given to it are not counted here: only the
        search for stop strings needs their number.
        """
        sampling = self.request.sampling
        scored = sampling.logprobs is not None or sampling.prompt_logprobs is not None
        whole = not self._scanners and not scored and not self.request.returns_token_ids
        return self._text if whole and not self.echoes_only else None

    @property
    def calls(self) -> int:
        """How many tool calls there are."""
        return 0

    @property
    def echoes_only(self) -> bool:
        """The prompt is the whole text (max_tokens 0)."""
        return self.request.max_tokens == 0

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.request.sampling.prompt_logprobs is not None

    def add_prompt_logprobs(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Keep them until all are known: they come with each chunk of the prompt."""
        self._prompt_logprobs.extend(logprobs)

    def prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        """The log probabilities of the prompt's tokens that come beside the answer; empty if not asked for."""
        if self.request.prompt_logprobs is None:
            return ()
        return tuple(self._spell(scores, 0, self.request.prompt_logprobs) for scores in self._scored_prompt())

    def _scored_prompt(self) -> list[TokenLogprob]:
        # The runner scores the token after each token; nothing precedes the prompt's first.
        first = TokenLogprob(token_id=self.prompt[0], logprob=None)
        missing_first = len(self._prompt_logprobs) < len(self.prompt)
        return [first, *self._prompt_logprobs] if missing_first else self._prompt_logprobs

    def echo(self) -> TextDelta:
        """The prompt's text, and its log probabilities if requested. Counts no token: none was generated."""
        source = self.request.prompts[self._prompt_index]
        whole = self.request.truncate_prompt_tokens is None
        sent = source.text if isinstance(source, TextPrompt) and whole else None
        pieces: list[str] = []
        offsets: list[int] = []
        for id in self.prompt:
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
        top = self.request.sampling.logprobs
        if top is None or not self.wants_prompt_logprobs:
            return TextDelta(text=text, kept=0)
        scored = zip(self._scored_prompt(), offsets, strict=False)
        logprobs = tuple(self._spell(scores, offset, top) for scores, offset in scored)
        return TextDelta(text=text, kept=0, logprobs=logprobs)

    def add_tokens(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob] = (), *, last: bool = False) -> TextDelta:
        """Add generated tokens. With `last` the choice ends with them, and everything held back is released.

        One more of the log probabilities than there are tokens is that of the stop token behind them.
        """
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
            if stop is None and len(logprobs) > len(ids):
                ending = self._spell(logprobs[len(ids)], self._characters)
                spelt.append(msgspec.structs.replace(ending, stops=True))
            return TextDelta(text=self._take(), kept=len(ids), logprobs=tuple(spelt), stop=stop)
        if not ids:
            return _NOTHING
        return TextDelta(text=self._take(self._keep), kept=len(ids), logprobs=tuple(spelt))

    def _add(self, text: str) -> str | None:
        """Append to the held text. Returns a stop string that this completes, after cutting the text there."""
        before = len(self._held)
        self._held += text
        self._characters += len(text)
        # Stop strings, like stop tokens, count only after `min_tokens` tokens.
        if not self._scanners or not text or self.tokens <= self.request.sampling.min_tokens:
            return None
        matches = [match for scanner in self._scanners if (match := scanner.scan(text)) is not None]
        if not matches:
            return None
        first = min(matches, key=lambda match: match.end)
        end = before + first.end
        self._held = self._held[: end if self.request.include_stop else end - first.length]
        return first.stop

    @property
    def _keep(self) -> int:
        """How many characters at the end may become a stop string."""
        return max([scanner.held for scanner in self._scanners], default=0)

    def _take(self, keep: int = 0) -> str:
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _spell(self, scores: TokenLogprob, offset: int, most: int | None = None) -> TokenLogprob:
        """Add the tokens' bytes, or their ids in words, and the offset in the text; of the alternatives, the `most`."""
        spell = _id_in_words if self.request.tokens_as_ids else self._vocabulary.piece_bytes
        return msgspec.structs.replace(
            scores,
            text=spell(scores.token_id),
            text_offset=offset,
            top=tuple(TopLogprob(top.token_id, top.logprob, spell(top.token_id)) for top in scores.top[:most]),
        )


def _id_in_words(id: int) -> bytes:
    """As vLLM spells it: two tokens may have the same text, but no two have the same id."""
    return b"token_id:%d" % id
