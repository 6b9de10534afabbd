"""Adapter from a ContextualEmbedder to a SentenceTransformer.

`encode_query` and `encode_document` are `embed_queries` and `embed_documents`. There is no parent level:
sentence-transformers passes single texts in batches of its own order, so that no text has siblings; for passages of
longer documents use a `Collection` with a `parent_key`. Such a model cannot be trained by sentence-transformers.
"""

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from cde_rag._files import read_file
from cde_rag.context.context import Context
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.protocol import EmbedderOptions
from cde_rag.errors import CorpusError, ModelError, require
from cde_rag.models import CDEModel
from cde_rag.models.files.names import ModelName
from cde_rag.models.files.weights import read_json
from cde_rag.models.loading import ModelSource
from cde_rag.models.runtimes.stage_runner import Dtype

sentence_transformers: Any = require("sentence_transformers", "interop")

CONFIG, CONTEXT, MODEL = "config.json", "corpus.context.safetensors", "model"  # in the folder of the module
TASKS = ("query", "document")  # as sentence-transformers calls the roles


class ContextualModule(torch.nn.Module):
    """The single module of the SentenceTransformer: an embedder with its Context.

    Args:
        embedder: The embedder; copied to another device if the SentenceTransformer is moved there.
        default_task: Task of `encode` without one: "query", "document", or None for an error.

    Raises:
        ModelError: The model is a plain one.
        ValueError: Another task.
    """

    def __init__(self, embedder: ContextualEmbedder, default_task: str | None = None) -> None:
        super().__init__()
        if default_task not in (*TASKS, None):
            raise ValueError(f"Expected default_task 'query', 'document' or None, found {default_task!r}.")
        if not isinstance(embedder.model, CDEModel):
            raise ModelError(f"{embedder.model.identity.name} is a plain model: give sentence-transformers itself.")
        self.embedder, self._model = embedder, embedder.model
        self.default_task = default_task
        # Where sentence-transformers wants it to compute. No floats, and no weights: nothing here can be cast or tuned.
        self.register_buffer("place", torch.empty(0, dtype=torch.int8, device=self._model.device), persistent=False)

    @property
    def max_seq_length(self) -> int:
        """Tokens of a text that are read; part of the vector space, so it cannot be set."""
        return self.embedder.context.identity.max_length

    def get_sentence_embedding_dimension(self) -> int:
        """Return the length of an embedding."""
        return self.embedder.dim

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, task: str | None = None) -> dict[str, Any]:
        """Prepare the features for `forward`.

        Args:
            inputs: Texts.
            prompt: None, or exactly the model's prefix for the task.
            task: "query" or "document"; set by `encode_query` and `encode_document`.

        Raises:
            ModelError: No task, or a prompt of the caller's own.
        """
        task = self.default_task if task is None else task
        if task not in TASKS:
            raise ModelError(
                f"Expected the task 'query' or 'document', found {task!r}. Call encode_query or encode_document; for "
                "code that can only call encode, make the model with default_task='document'."
            )
        prefix = self.embedder.context.identity.prefixes[task]
        if prompt not in (None, "", prefix):
            raise ModelError(
                f"Expected no prompt but {prefix!r}, which the model puts before a {task} by itself; found {prompt!r}. "
                "Leave it out; published models take others in CDEModel.from_pretrained(name, prefixes=…)."
            )
        return {"texts": list(inputs), "task": task}

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Add `sentence_embedding`, float32 `(texts, dim)`, unit norm.

        Raises:
            CorpusError: A text is blank or holds a lone surrogate.
        """
        embedder = self._here()
        embed = embedder.embed_queries if features["task"] == "query" else embedder.embed_documents
        try:
            vectors = embed(features["texts"])
        except CorpusError as reason:
            raise CorpusError(f"In a batch of sentence-transformers, which sorts texts by length: {reason}") from reason
        return {**features, "sentence_embedding": torch.as_tensor(vectors, device=self._place)}

    def save(self, output_path: str) -> None:
        """Write the model's files and the Context; `SentenceTransformer.save_pretrained` calls it.

        Raises:
            ModelError: The model was not read from files, or the folder has one already.
        """
        folder, model = Path(output_path), self._model
        if model.folder is None:
            raise ModelError("Expected a model that was read by its name or from a folder, found one made in memory.")
        ModelSource.of(model.folder, ModelName.parse(model.identity.name)).copy(folder / MODEL)
        self.embedder.context.save(folder / CONTEXT)
        (folder / CONFIG).write_text(json.dumps({"default_task": self.default_task}) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, input_path: str) -> "ContextualModule":
        """Load a saved module; called by `SentenceTransformer(folder, trust_remote_code=True)`.

        Raises:
            ContextFormatError: The Context is damaged, or of a newer format.
            ContextMismatchError: The model has other weights than the one that made the Context.
            ModelError: The model's files are missing or damaged.
        """
        return _read(Path(input_path), device=None)

    @property
    def _place(self) -> torch.device:
        place: Tensor = self.get_buffer("place")
        return place.device

    def _here(self) -> ContextualEmbedder:
        model = self._model
        if torch.device(str(model.device)) != self._place:
            network, digest = copy.deepcopy(model.network), model.identity.weights_sha256
            dtype = cast(Dtype, model.dtype)
            moved = CDEModel(network, model.tokenizer, digest, device=str(self._place), dtype=dtype)
            moved.folder = model.folder
            options = self.embedder.options.of_loaded
            self._model, self.embedder = moved, ContextualEmbedder(moved, self.embedder.context, options=options)
        return self.embedder


def sentence_transformer(embedder: ContextualEmbedder, *, default_task: str | None = None) -> Any:
    """Wrap an embedder as a SentenceTransformer with the same embeddings.

    `save_pretrained` writes model and Context to a folder that works offline; `load` reads it.

    Args:
        embedder: The embedder; its Context cannot be changed later.
        default_task: Task of `encode` without one: "query" or "document". By default such a call is an error that names
            `encode_query` and `encode_document`; BERTopic and others without tasks need "document".

    Returns:
        A `sentence_transformers.SentenceTransformer`; `similarity` is the cosine.

    Raises:
        ModelError: The model is a plain one.
        ValueError: Another task.
    """
    module, device = ContextualModule(embedder, default_task), embedder.model.device
    model = sentence_transformers.SentenceTransformer(modules=[module], device=device, similarity_fn_name="cosine")
    model.model_card_data.ir_model = True  # the card's example then calls encode_query and encode_document
    return model


def load(folder: str | Path, *, device: str | None = None) -> Any:
    """Load a folder written by `save_pretrained`, without running code of the folder.

    `SentenceTransformer(folder, trust_remote_code=True)` loads it too: since version 6 sentence-transformers requires
    that flag for every module that is not its own, although this one is installed. But the flag also runs the code of a
    folder that only looks like one of these; this function reads nothing but the model and its Context.

    Args:
        folder: Folder of a SentenceTransformer made by `sentence_transformer`.
        device: Such as "cpu" or "cuda"; by default CUDA if available.

    Raises:
        ContextFormatError: The Context is damaged, or of a newer format.
        ContextMismatchError: The model has other weights than the one that made the Context.
        ModelError: It is no such folder, or its files are missing or damaged.
    """
    place = Path(folder) / "modules.json"
    try:
        modules = [(str(module["type"]), str(module["path"])) for module in json.loads(read_file(place))]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelError(f"Expected a SentenceTransformer's modules at {place}, found: {error!r}.") from error
    ours = f"{ContextualModule.__module__}.{ContextualModule.__name__}"
    if [kind for kind, _ in modules] != [ours]:
        found = ", ".join(kind for kind, _ in modules)
        raise ModelError(f"{place}: expected {ours} alone, found {found}. Load it with SentenceTransformer itself.")
    module = _read(Path(folder) / modules[0][1], device=device)
    return sentence_transformer(module.embedder, default_task=module.default_task)


def _read(folder: Path, *, device: str | None) -> ContextualModule:
    """Load a folder written by `ContextualModule.save`."""
    context = Context.load(folder / CONTEXT)
    name = replace(ModelName.parse(context.identity.name), base=str(folder / MODEL), revision=None)
    default_task = read_json(folder / CONFIG).get("default_task")
    embedder = ContextualEmbedder(str(name), context, options=EmbedderOptions(device=device))
    try:
        return ContextualModule(embedder, default_task)
    except ValueError as error:
        raise ModelError(f"{folder / CONFIG}: {error}") from error
