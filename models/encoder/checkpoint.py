"""A folder with an encoder: its spec, its weights' files, and what follows the encoder."""

from pathlib import Path

from ..checkpoint.checkpoint import TensorFolder
from ..checkpoint.files import folder_of, read_json
from ..checkpoint.safetensors import to_float32
from .head import Dense, Ending, Head
from .sentence import SentenceFiles, has_modules, read_sentence_files
from .spec import Classifier, EncoderSpec, encoder_from_config, is_encoder
from .weights import ClassifierWeights

MAX_CONFIG_BYTES = 4 << 20


def holds_encoder(path: Path) -> bool:
    """Whether it is a folder whose config.json describes an encoder. Raises CheckpointError for no sound folder."""
    if path.is_file():  # GGUF: a decoder's
        return False
    return is_encoder(read_json(folder_of(path), "config.json", MAX_CONFIG_BYTES))


def makes_vectors(path: Path) -> bool:
    """Whether it is an encoder's folder, or a decoder's with sentence-transformers' list of modules."""
    return holds_encoder(path) or (path.is_dir() and has_modules(folder_of(path)))


class EncoderCheckpoint(TensorFolder):
    """An opened checkpoint of an encoder."""

    def __init__(self, path: Path) -> None:
        folder = folder_of(path)
        self.spec: EncoderSpec = encoder_from_config(read_json(folder, "config.json", MAX_CONFIG_BYTES))
        self.sentence: SentenceFiles | None = None  # None: a classifier
        if self.spec.classifier is None:
            self.sentence = read_sentence_files(folder, self.spec.hidden_size)
        super().__init__(folder)

    @property
    def max_length(self) -> int:
        """Tokens of the longest text: what the encoder has positions for, and what it was trained on."""
        trained = None if self.sentence is None else self.sentence.max_length
        return min(self.spec.max_position, trained or self.spec.max_position)

    def head(self, classifier: ClassifierWeights | None) -> Head:
        if self.sentence is not None:
            return self.sentence.head
        assert self.spec.classifier is not None, "a spec has either"
        assert classifier is not None, "and so have its weights"
        return classifier_head(self.spec.classifier, classifier, self.spec.norm_eps)


def classifier_head(spec: Classifier, weights: ClassifierWeights, eps: float) -> Head:
    """Its vector has one logit per label."""
    ending: Ending = "as is"
    norm = None
    if weights.norm is not None:
        shift = weights.norm.bias
        norm = to_float32(weights.norm.weight), None if shift is None else to_float32(shift), eps
    layers = tuple(
        Dense(to_float32(part.weight), None if part.bias is None else to_float32(part.bias), activation, after)
        for part, activation, after in ((weights.dense, spec.activation, norm), (weights.out, "identity", None))
    )
    return Head(pooling=spec.pooling, layers=layers, ending=ending)
