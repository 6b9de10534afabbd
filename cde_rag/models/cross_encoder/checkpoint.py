"""Files of cross-encoders, found and checked: sentence-transformers' own, or models of transformers with one score."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cde_rag.errors import ModelError
from cde_rag.models.files.names import ModelName
from cde_rag.models.plain.checkpoint import MODULES, ModelFiles
from cde_rag.models.plain.config import SETTINGS
from cde_rag.models.plain.settings import OtherArchitectureError, json_object, other_forms

EXAMPLE: Final = "cross-encoder/ms-marco-MiniLM-L6-v2"
CLASSIFIER: Final = "ForSequenceClassification"  # end of the names of architectures that score a pair
_GENERATIVE: Final = "ForCausalLM"  # whose score is that of an answer, "yes"
_USUAL: Final = "torch.nn.modules.activation.Sigmoid"  # of one score, where the files name none


@dataclass(frozen=True)
class CrossEncoderFiles:
    """Files of a cross-encoder with one score.

    Attributes:
        files: The files.
        config: Content of config.json, but for the settings that are read here.
        settings: Content of sentence-transformers' settings, likewise.
        architecture: Name of the class in transformers.
        activation: Path of torch's class that is applied to a score.
        has_modules: True if there is a list of modules.
    """

    files: ModelFiles
    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    architecture: str
    activation: str
    has_modules: bool

    @classmethod
    def find(cls, name: str) -> "CrossEncoderFiles":
        """Find a cross-encoder by its folder or hub id, and hash its files.

        Args:
            name: A folder or a hub id, with `@revision` if need be.

        Raises:
            MissingExtraError: It is a hub id, and the extra `hub` is not installed.
            ModelError: There is no such model; it is no cross-encoder, has more than one score, lacks safetensors, or
                needs files of another folder.
        """
        files = ModelFiles.find_cross_encoder(name)
        try:
            with other_forms():
                return cls._read(files)
        except OtherArchitectureError as found:
            raise ModelError(f"{files.name}: expected the files of a cross-encoder, found {found}.") from found

    @classmethod
    def _read(cls, files: ModelFiles) -> "CrossEncoderFiles":
        config, settings = dict(json_object(files, "config.json")), dict(json_object(files, SETTINGS))
        architecture = str(next(iter(config.get("architectures") or ()), "none"))
        kind = str(settings.get("model_type") or "")
        has_modules = MODULES in files.digests
        scores = architecture.endswith((CLASSIFIER, _GENERATIVE)) and not (has_modules and kind != "CrossEncoder")
        if not (scores or kind == "CrossEncoder"):
            raise ModelError(
                f"Expected a cross-encoder such as {EXAMPLE}, found {files.name}, "
                f"{f'a {kind}' if kind else f'whose architecture is {architecture}'}. A model that embeds texts is "
                "given as model=…."
            )
        labels = config.get("id2label")
        count = int(config.get("num_labels", 2)) if labels is None else len(labels)
        if architecture.endswith(CLASSIFIER) and count != 1:
            raise ModelError(f"Expected a cross-encoder with one score for a pair, found {files.name} with {count}.")
        old = config.pop("sbert_ce_default_activation_function", None)
        others: Mapping[str, Any] = config.get("sentence_transformers") or {}
        named: object = settings.pop("activation_fn", None) or others.get("activation_fn")
        return cls(files, config, settings, architecture, str(named or old or _USUAL), has_modules)


def is_place(name: str) -> bool:
    """Return True for a name that has the form of a hub id, with a revision or none."""
    parsed = ModelName.parse(name)
    return parsed.is_hub_id and not parsed.has_options
