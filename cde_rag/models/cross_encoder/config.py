"""Cross-encoders read from their files without torch: encoder, classifier and tokenizer of pairs.

Every setting that could change a score is checked: what is not known here, sentence-transformers itself runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from tokenizers import Tokenizer

from cde_rag.models.cross_encoder.checkpoint import CLASSIFIER, CrossEncoderFiles
from cde_rag.models.plain.bert import BertEncoder
from cde_rag.models.plain.checkpoint import MODULES
from cde_rag.models.plain.config import SETTINGS, StoredEncoder, read_encoder
from cde_rag.models.plain.modules import read_modules
from cde_rag.models.plain.settings import (
    OtherArchitectureError,
    check_settings,
    json_object,
    other_forms,
    stored_shapes,
)
from cde_rag.models.plain.tokenizer import tokenizer_settings
from cde_rag.models.tokenizer import CHARACTERS_A_TOKEN, beginning

_TASK: Final[Mapping[str, Any]] = {  # settings of a Transformer module that scores
    "transformer_task": "sequence-classification",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "scores",
}
ACTIVATIONS: Final = {  # torch's classes, ours
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
}
_TYPES: Final = "token_type_ids"
_NO_TYPES: Final = ("Roberta", "XLMRoberta")  # starts of classes of tokenizers that name no types by default


class PairTokens(NamedTuple):
    """A query and a text as token ids.

    Attributes:
        ids: Token ids, special tokens included.
        types: Of each token 0, or 1 where it belongs to the text.
    """

    ids: list[int]
    types: list[int]


class CrossTokenizer:
    """Tokenizer of pairs, which cuts the longer side first, as transformers does. Thread-safe.

    Args:
        serialised: The JSON of a `tokenizers` tokenizer.
        max_length: Maximum tokens of a pair, special tokens included.
    """

    def __init__(self, serialised: str, max_length: int) -> None:
        self._tokenizer: Any = Tokenizer.from_str(serialised)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length, strategy="longest_first", direction="right")
        self.max_length = max_length

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[PairTokens]:
        """Tokenize pairs; of very long texts only a beginning of more tokens than are read."""
        characters = CHARACTERS_A_TOKEN * self.max_length
        shown = [(beginning(query, characters), beginning(text, characters)) for query, text in pairs]
        found = self._tokenizer.encode_batch(shown)
        for place, (given, pair) in enumerate(zip(shown, pairs, strict=True)):
            if given != pair and len(found[place].ids) < self.max_length:  # mostly of what is no token
                found[place] = self._tokenizer.encode(*pair)
        return [PairTokens(encoding.ids, encoding.type_ids) for encoding in found]


@dataclass(frozen=True)
class Classifier:
    """A pooling and two linear layers that score a pair.

    Attributes:
        pooling: "cls" or "mean".
        dense: Name of the first layer.
        activation: ONNX operation after the first layer.
        output: Name of the last layer, which has a bias.
        norm: Name of a layer normalisation without bias after the first layer, which has no bias then; None for none.
    """

    pooling: str
    dense: str
    activation: str
    output: str
    norm: str | None = None

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Classifier":
        """Read the classifier of an architecture.

        Raises:
            OtherArchitectureError: A setting is not known.
        """
        kind = str(config.get("model_type"))
        if kind == "modernbert":
            known = {"classifier_activation": "gelu", "classifier_bias": False, "classifier_pooling": None}
            check_settings("config.json", {key: config.get(key) for key in known}, known=known)
            if (pooling := config.get("classifier_pooling", "cls")) not in ("cls", "mean"):
                raise OtherArchitectureError(f"classifier_pooling {pooling!r} in config.json")
            return cls(str(pooling), "head.dense", "Gelu", "classifier", "head.norm")
        if kind == "bert":
            return cls("cls", "bert.pooler.dense", "Tanh", "classifier")
        return cls("cls", "classifier.dense", "Tanh", "classifier.out_proj")

    def shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Return the weights by their names, with their shapes.

        Args:
            dim: Length of a token's state.
        """
        return {
            f"{self.dense}.weight": (dim, dim),
            f"{self.dense}.bias" if self.norm is None else f"{self.norm}.weight": (dim,),
            f"{self.output}.weight": (1, dim),
            f"{self.output}.bias": (1,),
        }


@dataclass(frozen=True, kw_only=True)
class PairEncoder(StoredEncoder):
    """A cross-encoder: an encoder of pairs with its classifier.

    Attributes:
        classifier: Work on the states of tokens.
        pairs: Tokenizer of pairs.
        has_types: True if the tokens of the text have the second type.
        activation: "sigmoid" or "identity", applied to a score.
    """

    classifier: Classifier
    pairs: CrossTokenizer
    has_types: bool
    activation: str

    @classmethod
    def read(cls, found: CrossEncoderFiles) -> "PairEncoder":
        """Read a cross-encoder, but for its weights.

        Raises:
            ModelError: A file was written meanwhile.
            OtherArchitectureError: It is another one; with what was found.
        """
        with other_forms():
            return cls._read(found)

    @classmethod
    def _read(cls, found: CrossEncoderFiles) -> "PairEncoder":
        files = found.files
        if not found.architecture.endswith(CLASSIFIER):
            raise OtherArchitectureError(f"the architecture {found.architecture}")
        if found.has_modules:
            modules = read_modules(files, "document")
            if len(modules) != 1 or modules[0].folder:
                raise OtherArchitectureError(f"several modules in {MODULES}")
        if found.activation not in ACTIVATIONS:
            raise OtherArchitectureError(f"activation_fn {found.activation!r:.80}")
        known = {"__version__": None, "similarity_fn_name": None, "model_type": "CrossEncoder"}
        check_settings(SETTINGS, found.settings, known=known)
        stored = read_encoder(files, "", found.config, task=_TASK)
        classifier = Classifier.read(found.config)
        shapes = {name: shape for path in stored.weights for name, shape in stored_shapes(files, path).items()}
        expected = classifier.shapes(stored.encoder.sizes.dim)
        if any(shapes.get(name) != shape for name, shape in expected.items()):
            raise OtherArchitectureError(f"a classifier with other weights than those of {found.architecture}")
        return cls(
            files=files,
            encoder=stored.encoder,
            tokenizer=stored.tokenizer,
            weights=stored.weights,
            prefix=stored.prefix,
            classifier=classifier,
            pairs=CrossTokenizer(stored.tokenizer.serialised, stored.max_length),
            has_types=_has_types(stored),
            activation=ACTIVATIONS[found.activation],
        )


def _has_types(stored: StoredEncoder) -> bool:
    """Return True if tokens of the text have the second type; checks that pairs are put together as transformers does.

    Raises:
        OtherArchitectureError: They are not.
    """
    settings = tokenizer_settings(partial(json_object, stored.files), "")
    kind = str(settings.get("tokenizer_class") or "BertTokenizer")
    single = [0] if kind.startswith(_NO_TYPES) else [0, 1]  # types in the template of a class that has one of its own
    encoding = Tokenizer.from_str(stored.tokenizer.serialised).encode("a", "a")
    specials = len(encoding.ids) - 2 * len(stored.tokenizer.ids("a"))
    usual = 4 if kind.startswith(_NO_TYPES) else 3
    if kind.startswith(("Bert", *_NO_TYPES)) and (specials != usual or sorted(set(encoding.type_ids)) != single):
        raise OtherArchitectureError(f"a tokenizer of class {kind} with pairs of its own")
    names = settings.get("model_input_names") or ([] if kind.startswith(_NO_TYPES) else [_TYPES])
    return isinstance(stored.encoder, BertEncoder) and stored.encoder.types > 1 and _TYPES in names
