"""Towers: the way of a role's texts through a model, and the runtime that it takes."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from jaxtyping import Float32

from cde_rag.errors import MissingExtraError, ModelError
from cde_rag.models.plain.checkpoint import ModelFiles, digest_of
from cde_rag.models.plain.config import TextEncoder, read_prompts
from cde_rag.models.plain.corpus_map import unit
from cde_rag.models.plain.graph_runner import GraphTextModel
from cde_rag.models.plain.modules import read_modules
from cde_rag.models.plain.network import TorchTextModel
from cde_rag.models.plain.settings import OtherArchitectureError, other_forms
from cde_rag.models.plain.static_table import StaticTable, TableTextModel
from cde_rag.models.plain.text_model import ReadText, TextModel
from cde_rag.models.runtimes import runtime_choice
from cde_rag.models.runtimes.attention import AUTO, check_without_torch
from cde_rag.models.runtimes.runtime_choice import Runtime
from cde_rag.models.runtimes.stage_runner import Dtype
from cde_rag.models.runtimes.threads import batch_threads
from cde_rag.models.shared import Shared

_log = logging.getLogger(__name__)
Part: TypeAlias = TextEncoder | StaticTable
Choice: TypeAlias = tuple[str, str | None]
"""A runtime, and a dtype; None for the runtime's own."""


@dataclass(frozen=True)
class Tower:
    """The way of a role's texts through a model.

    Attributes:
        files: Files of the model.
        role: "query" or "document"; "document" where both take the same way.
        part: Encoder or table that runs without torch; None if there is none.
        found: Setting or part because of which there is none.
    """

    files: ModelFiles
    role: str
    part: Part | None
    found: str = ""

    @classmethod
    def read(cls, files: ModelFiles, role: str) -> "Tower":
        """Read the modules of a role's texts, but for their weights.

        Raises:
            ModelError: A file was written meanwhile.
        """
        role = role if files.is_routed else "document"
        try:
            with other_forms():
                kind = read_modules(files, role)[0].kind
            if (reader := _READERS.get(kind)) is None:
                raise OtherArchitectureError(f"the module {kind}")
            read_prompts(files)
            return cls(files, role, reader(files, role))
        except OtherArchitectureError as found:
            return cls(files, role, None, str(found))

    @property
    def source(self) -> tuple[object, ...]:
        """Key by which two towers differ: the state of their files, and the role if each has its own."""
        return self.files.name, tuple(self.files.digests.items()), tuple(self.files.written), self.role

    def load(self, choice: Choice, *, max_length: int | None, device: str | None, attention: str = AUTO) -> TextModel:
        """Load the model in a runtime; within a process the embedders of a model share it.

        Args:
            choice: Runtime and dtype.
            max_length: Maximum tokens of a text; by default the model's own.
            device: Such as "cpu", for torch.
            attention: As in `use_attention`, for torch.

        Raises:
            MissingExtraError: The runtime is not installed.
            ModelError: The runtime cannot load it, a file was written meanwhile, or it reads fewer tokens.
        """
        if isinstance(self.part, TextEncoder) and max_length == self.part.max_length:
            max_length = None  # as a collection names it that was made without a limit
        key = (*self.source, max_length, device, choice, attention, batch_threads())
        return _LOADED.get(key, partial(self._load, choice, max_length, device, attention))

    def _load(self, choice: Choice, max_length: int | None, device: str | None, attention: str) -> TextModel:
        runtime, dtype = choice
        if runtime == "torch":
            return self._in_torch(dtype, max_length, device, attention)
        check_without_torch(attention, runtime)
        if isinstance(self.part, StaticTable):
            return TableTextModel(self.part, max_length=max_length)
        if self.part is None:
            raise ModelError(f"{self.files.name} runs in torch alone, found {self.found}.")
        return self.in_graph(self.part, runtime, dtype or "float32", max_length)

    def in_graph(self, part: TextEncoder, runtime: str, dtype: str, max_length: int | None = None) -> GraphTextModel:
        """Load an encoder as a graph."""
        stage = f"plain_{self.role}" if self.files.is_routed else "plain"
        return GraphTextModel(part, self.files.weights_sha256, stage, runtime, dtype, max_length=max_length)

    def _in_torch(
        self, dtype: str | None, max_length: int | None, device: str | None, attention: str
    ) -> TorchTextModel:
        try:
            return TorchTextModel(
                self.files, self.role, max_length=max_length, device=device, dtype=dtype, attention=attention
            )
        except MissingExtraError as error:
            if not self.found:
                raise
            raise MissingExtraError(f"{self.files.name} runs in torch alone, found {self.found}. {error}") from error


def load_towers(
    towers: Mapping[str, Tower],
    *,
    max_length: int | None,
    device: str | None,
    dtype: Dtype | None,
    runtime: Runtime | None,
    attention: str = AUTO,
) -> dict[str, TextModel]:
    """Load the towers of a model, each in the runtime that is named or fits best.

    Static tables take NumPy, encoders the fastest runtime of the machine, all else torch, which a line in the log says.
    A named runtime has float32 by default, since bfloat16 shares the vector space of some models only.

    Args:
        towers: By role, "document" and "query".
        max_length: Maximum tokens of a document, and of a query where both take the same way.
        device: Such as "cpu" or "cuda"; by default CUDA if there is one.
        dtype: Dtype of the layers.
        runtime: "torch", "openvino", "onnx" or "numpy"; by default the environment's, or as above.
        attention: As in `use_attention`, for torch.

    Raises:
        MissingExtraError: The runtime is not installed.
        ModelError: The runtime does not run the model, or as of `Tower.load`.
    """
    asked = runtime_choice.asked(runtime)
    encoders = {role: tower for role, tower in towers.items() if isinstance(tower.part, TextEncoder)}
    for tower in towers.values():
        if runtime in runtime_choice.WITHOUT_TORCH and tower.part is None:
            raise ModelError(
                f"{tower.files.name}: the runtime {runtime!r} runs BERT, RoBERTa, XLM-R and ModernBERT encoders and "
                f"static tables, found {tower.found}. Leave runtime out."
            )
    if runtime not in (None, "torch", runtime_choice.NUMPY) and not encoders:
        raise ModelError(
            f"{towers['document'].files.name} is a static table, which needs no {runtime!r}: NumPy runs it."
        )
    of_encoders: Choice = ("torch", dtype)
    if encoders and asked != "torch":
        given = dtype if asked is None else dtype or "float32"
        of_encoders = runtime_choice.choose(asked, lambda: timings(towers), device=device, dtype=given)
    choices = {role: _choice(tower, asked, of_encoders, device=device, dtype=dtype) for role, tower in towers.items()}
    same = towers["query"].source == towers["document"].source
    return {
        role: tower.load(
            choices[role],
            max_length=max_length if same or role == "document" else None,
            device=device,
            attention=attention,
        )
        for role, tower in towers.items()
    }


def _choice(tower: Tower, asked: str | None, of_encoders: Choice, *, device: str | None, dtype: str | None) -> Choice:
    if asked != "torch" and tower.part is None:
        _log.warning(
            "%s runs in torch, by sentence-transformers: the runtimes without torch do not know %s.",
            tower.files.name,
            tower.found,
        )
        return "torch", dtype
    if isinstance(tower.part, TextEncoder):
        return of_encoders
    here = device in (None, "cpu") and dtype in (None, "float32")
    return (runtime_choice.NUMPY, None) if here and asked != "torch" else ("torch", dtype)


def timings(towers: Mapping[str, Tower]) -> Sequence[runtime_choice.Timing]:
    """Return the times of the runtimes of encoders on this machine, measured once and kept in the user's cache.

    Args:
        towers: By role; a role without encoder is measured with the other's.
    """
    found = {role: (tower, tower.part) for role, tower in towers.items() if isinstance(tower.part, TextEncoder)}
    used = {role: found.get(role) or next(iter(found.values())) for role in towers}
    files = list(dict.fromkeys(tower.files.name for tower, _ in used.values()))
    parts = [tower.files for tower, _ in used.values()][: len(files)]
    digest = "".join(each.weights_sha256 + each.tokenizer_sha256 for each in parts)
    texts, question = runtime_choice.sample()

    def trial(runtime: str, dtype: Dtype) -> runtime_choice.Trial:
        def work(role: str, texts: Sequence[str]) -> Callable[[], Float32[np.ndarray, "texts dim"]]:
            tower, part = used[role]
            model: TextModel = (
                TorchTextModel(tower.files, tower.role, max_length=None, device="cpu", dtype=dtype)
                if runtime == "torch"
                else tower.in_graph(part, runtime, dtype)
            )
            read = model.read(texts, "")
            return partial(_embedded, model, read, role)

        return runtime_choice.Trial(runtime, dtype, work("document", texts), work("query", [question]))

    return runtime_choice.timings(digest_of(digest), " and ".join(files), trial)


def _embedded(model: TextModel, read: Sequence[ReadText], role: str) -> Float32[np.ndarray, "texts dim"]:
    return unit(model.embed(read, role=role, prefix="", batch_size=len(read), progress=False))


_READERS: Final[Mapping[str, Callable[[ModelFiles, str], Part]]] = {
    "Transformer": TextEncoder.read,
    "StaticEmbedding": StaticTable.read,
}
_LOADED: Final = Shared[TextModel]()
