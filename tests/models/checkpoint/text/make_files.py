"""Writes files/: small vocabularies, and the ids that the libraries they come from give 300 texts.

Needs sentencepiece, tiktoken, mistral-common and llama-cpp-python; the tests need none of them:

    python -m tests.models.checkpoint.text.make_files
"""

# mypy: ignore-errors
# pyright: basic, reportMissingImports=false

import gzip
import json
import random
import tempfile
import unicodedata
from base64 import b64encode
from pathlib import Path

import llama_cpp
import sentencepiece
import tiktoken
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from triolet.models.checkpoint.text.byte_level import byte_of_character
from triolet.models.checkpoint.text.splits import CL100K

from .vocabularies import CONTROL, CUTS, FOLDER, byte_level_metadata, ranks, sentencepiece_metadata, tekken, write

SENTENCES = [
    "The quick brown fox jumps over the lazy dog. It's 3,141,592.65, isn't it? I'M, YOU'RE, WE'VE!",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Voix ambiguë d’un cœur",
    "Съешь же ещё этих мягких французских булок. Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία. İSTANBUL ıI",
    "我能吞下玻璃而不伤身体。今天天气很好！ いろはにほへと ちりぬるを 키스의 고유조건은 입술끼리",
    "نص حكيم له سر قاطع وذو شأن عظيم דג סקרן שט בים ऋषियों को सताने वाले เป็นมนุษย์สุดประเสริฐ",
    "def f(x):\n    return {k: v for k, v in x.items() if v > 0}  # comment\n\n\tSELECT * FROM t WHERE a='b';",
    'https://example.org/a?b=c&d=%20e#frag <div class="x">Hello&nbsp;world</div> x² + y² = z² ≠ ½ ﬁ Ⅷ ㌔',
    "😀😃🏳️‍🌈👩‍👩‍👧‍👦🇩🇪👍🏽❤️‍🔥 e\u0301 a\u030a \u1100\u1161\u11a8 𝕳𝖊𝖑𝖑𝖔 𐍈 𒀀 10'000 00123",
]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n"]
SPACES += ["\u00a0", "\u3000", "\u2009", "\u200b", "\ufeff", "\v", " " * 12]
ODD = [*map(chr, range(0, 32, 5)), "\x7f", "\u200d", "\ufffd", "▁", "▁▁", "\ue000", "\U0010ffff", "<0x0A>", "<|user|>"]


def texts(count: int) -> list[str]:
    draw = random.Random(14)

    def part() -> str:
        kind = draw.random()
        if kind < 0.6:
            sentence = draw.choice(SENTENCES)
            start = draw.randrange(len(sentence))
            return sentence[start : start + draw.randrange(1, 30)]
        return draw.choice(SPACES if kind < 0.8 else ODD if kind < 0.9 else [*CONTROL, "<ctl>", "[INST]"])

    made = ["".join(part() for _ in range(draw.randrange(1, 6))) for _ in range(count)]
    return [*SENTENCES, *SPACES, *ODD, *made][:count]


def train(folder: Path) -> None:
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(" ".join(text.split()) for text in SENTENCES * 20))
    rules = folder / "rules.tsv"  # a small map of characters: code points, and what they become
    rules.write_text("FB01\t66 69\n2460\t31\n65 301\tE9\n9\t20\nA\t20\nA0\t20\n3000\t20\n41\t61\n")
    common = {"input": str(corpus), "minloglevel": 2, "character_coverage": 0.98, "num_threads": 1}
    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
    kinds = {"control_symbols": ["<ctl>"], "user_defined_symbols": ["<|user|>", "<|open|>"]}
    variants = {
        "bpe": {"model_type": "bpe", "vocab_size": 560, "split_digits": True, **plain, **kinds},
        "unigram": {"model_type": "unigram", "vocab_size": 280, "normalization_rule_tsv": str(rules), **kinds},
    }
    for name, options in variants.items():
        sentencepiece.SentencePieceTrainer.train(model_prefix=str(FOLDER / name), **common, **options)
        (FOLDER / f"{name}.vocab").unlink()
    bpe = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(CL100K), "isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(SENTENCES * 20, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    table = byte_of_character()
    pieces = sorted(bpe.get_vocab().items(), key=lambda item: item[1])
    merged = [bytes(table[character] for character in piece) for piece, _ in pieces if len(piece) > 1]
    tokens = [*(bytes([byte]) for byte in range(256)), *merged]
    lines = [b64encode(token) + f" {rank}\n".encode() for rank, token in enumerate(tokens)]
    (FOLDER / "ranks.tiktoken").write_bytes(b"".join(lines))


def llama_ids(path: Path, given: list[str]) -> list[list[int]]:
    options = llama_cpp.llama_model_default_params()
    options.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    found = []
    for text in given:
        data = text.encode()
        space = 2 * len(data) + 16
        ids = (llama_cpp.llama_token * space)()
        count = llama_cpp.llama_tokenize(vocabulary, data, len(data), ids, space, False, False)
        found.append(list(ids[:count]))
    return found


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(folder)
        given = texts(300)
        ids: dict[str, list[list[int]]] = {}
        for kind in ("bpe", "unigram"):
            model = sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / f"{kind}.model"))
            ids[kind] = [model.encode(text) for text in given]
        mergeable = {token: rank for rank, token in enumerate(ranks())}
        encoding = tiktoken.Encoding("small", pat_str=CL100K, mergeable_ranks=mergeable, special_tokens={})
        ids["tiktoken"] = [encoding.encode_ordinary(text) for text in given]
        (folder / "tekken.json").write_text(json.dumps(tekken()))
        mistral = Tekkenizer.from_file(folder / "tekken.json")
        ids["tekken"] = [mistral.encode(text, bos=False, eos=False) for text in given]
        for cut in CUTS:
            composed = [unicodedata.normalize("NFC", text) for text in given] if cut == "qwen2" else given
            ids[cut] = llama_ids(write(folder / f"{cut}.gguf", byte_level_metadata(cut)), composed)
        ids["llama"] = llama_ids(write(folder / "llama.gguf", sentencepiece_metadata()), given)
    content = json.dumps({"texts": given, "ids": ids}, separators=(",", ":")).encode()
    (FOLDER / "expected.json.gz").write_bytes(gzip.compress(content, 9, mtime=0))


if __name__ == "__main__":
    main()
