"""How byte-level vocabularies cut a text before anything is merged: expressions by the names of GGUF files.

The expressions are those of the models' own `tokenizer.json`, several of them applied one after the other. llama.cpp
approximates a few of them, where its own engine of expressions lacks something; here they are complete.
Names: https://github.com/ggml-org/llama.cpp, src/llama-vocab.cpp.
"""

from typing import Final, NamedTuple

_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{suffix}"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{suffix}"
)

GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K: Final = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
QWEN2: Final = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION}|{_SPACES}"
QWEN35: Final = (
    rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
O200K: Final = _CASED.replace("{suffix}", _SUFFIXES + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
TEKKEN: Final = _CASED.replace("{suffix}", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
KIMI: Final = (  # as o200k, but Chinese characters are words of their own
    r"\p{Han}+|" + O200K.replace(r"\p{Lo}\p{M}]", r"\p{Lo}\p{M}&&[^\p{Han}]]").replace(r"[\r\n/]*", r"[\r\n]*")
)
_DIGITS: Final = r"\p{N}{1,3}"
_DIGIT: Final = r"\p{N}"
_HAN_KANA: Final = "[一-龥\u3040-ゟ゠-ヿ]+"
_DEEPSEEK3: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Split(NamedTuple):
    """`whole`: a part of the text that is a token is taken as it is. `nfc`: the text is normalised first."""

    patterns: tuple[str, ...]
    whole: bool = False
    nfc: bool = False
    adds_bos: bool = False  # if the file does not say


_GPT2 = Split((GPT2,))
_LLAMA3 = Split((CL100K,), whole=True, adds_bos=True)
_DIGITS_GPT2 = Split((_DIGIT, GPT2))
_QWEN2 = Split((QWEN2,), nfc=True)
_O200K = Split((O200K,))
_DEEPSEEK_LETTERS: Final = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛ"
    "ὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-"
    "ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)

SPLITS: Final[dict[str, Split]] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("gpt-2", "phi-2", "exaone4", "granite-docling", "trillion", "modern-bert", "mellum"), _GPT2),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"), _DIGITS_GPT2),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _O200K),
    **dict.fromkeys(("glm4", "glm5"), Split((CL100K,), whole=True)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), Split((CL100K,))),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), Split((_DIGITS, _HAN_KANA, _DEEPSEEK3))),
    **dict.fromkeys(("olmo", "mpt"), Split((GPT2,), nfc=True)),
    "qwen35": Split((QWEN35,), nfc=True),
    "hunyuan": Split((QWEN2,)),
    "stablelm2": Split((QWEN2,)),
    "command-r": Split((_DIGIT, GPT2), nfc=True),
    "tekken": Split((TEKKEN,), whole=True, adds_bos=True),
    "deepseek-llm": Split(
        (
            *("[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$"),
            *("[一-龥ࠀ-一가-퟿]+", r"\p{N}+"),
        )
    ),
    "deepseek-coder": Split(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    "falcon": Split((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    "seed-coder": Split((rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)),
    "bailingmoe": Split(
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
            r"|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
}
