"""Loading of two-stage models by name: bundled models, folders and the hub, and the choice of their runtime."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from cde_rag._files import user_path, written
from cde_rag.errors import ModelError, require
from cde_rag.models.families import TWO_STAGE, AnyFiles, Checkpoint, TwoStageFamily, two_stage_family
from cde_rag.models.files import hub, model_files
from cde_rag.models.files.model_files import CONFIG, TOKENIZER, VOCABULARY, WEIGHTS
from cde_rag.models.files.names import ModelName
from cde_rag.models.files.weights import read_json
from cde_rag.models.runtimes import runtime_choice
from cde_rag.models.runtimes.runtime_choice import Runtime
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY, Dtype, StageRunner

FEW_DOCUMENTS: Final = 2  # of the sample that models which need a context are measured with: one takes a second
JOINED: Final = 4  # texts of the sample in each of them: the error of bfloat16 shows in long ones


@dataclass(frozen=True)
class ModelSource:
    """A model's folder with the name under which it is found again, and its family.

    Attributes:
        folder: Folder of its files.
        name: Name, with the options of its reading.
        family: Family of the model.
    """

    folder: Path
    name: ModelName
    family: TwoStageFamily

    @classmethod
    def of(cls, folder: Path, name: ModelName | None = None) -> "ModelSource":
        """Recognise the family of a folder; without a name the model has no options.

        Raises:
            ModelError: There is no config, or the name has options that the family has not.
        """
        config = read_json(folder / CONFIG)
        family = two_stage_family(config) or TWO_STAGE[-1]  # whose reading says what is missing
        if name is not None and name.has_options and not family.has_options:
            raise ModelError(
                f"attention, semantics, sizes and prefixes are for two-way models; {name.base} is read in one way only."
            )
        return cls(folder, name or ModelName(base=str(folder)), family)

    @classmethod
    def find(cls, name: ModelName, *, token: str | None = None) -> "ModelSource":
        """Find a model by its name; it is downloaded if necessary. The name of the source finds the very same again.

        Args:
            name: Name of the model.
            token: Token for the hub.

        Raises:
            MissingExtraError: `huggingface_hub` is not installed.
            ModelError: There is no such model.
        """
        folder = model_files.local(name.base)
        if folder is None and name.is_hub_id and not user_path(name.base).is_dir():  # a folder's name is told nobody
            folder = hub.fetch(name.base, revision=name.revision, token=token)
            return cls.of(folder, replace(name, revision=folder.name))
        if name.revision is not None:
            raise ModelError(f"A revision is for models of the hub; {name.base!r} is none. Leave the revision out.")
        folder = model_files.find(name.base)
        return cls.of(folder, replace(name, base=str(folder.resolve())))

    @cached_property
    def files(self) -> AnyFiles:
        """Config and tokenizer; all files are checked, but weights are read by whoever needs them.

        Raises:
            ModelError: Files are incomplete, damaged, pickled or of a newer format.
        """
        return self.family.files(self.folder, self.name)

    def network(self) -> Checkpoint:
        """Read the network, of torch.

        Raises:
            MissingExtraError: torch is not installed; a two-way model needs `transformers`.
            ModelError: As `files`.
        """
        require("torch", "torch")
        return self.family.network(self.folder, lambda: self.files)

    def graphs(self, runtime: str, dtype: str) -> StageRunner:
        """Load both stages in a runtime without torch.

        Raises:
            MissingExtraError: The runtime, or `onnx`, is not installed.
            ModelError: The runtime has no such dtype, or the weights are damaged.
        """
        return self.family.graphs(self.files, runtime, dtype)

    def chosen_runtime(
        self, runtime: Runtime | None, device: str | None, dtype: Dtype | None
    ) -> tuple[str, Dtype | None]:
        """Choose runtime and dtype: those that are given, or the fastest ones on this machine.

        The first choice for a model on a machine measures for some seconds, if several runtimes are installed.

        Args:
            runtime: "torch", "openvino" or "onnx"; None: that of the environment's CDE_RAG_RUNTIME, or the fastest.
            device: Such as "cpu"; anything else runs in torch.
            dtype: Dtype of the second stage's layers; None: torch's own choice, or the fastest.

        Returns:
            The runtime, and its dtype; None for torch's own choice.

        Raises:
            MissingExtraError: No runtime is installed.
            ModelError: There is no such runtime, or it runs no such model, device or dtype.
        """
        asked = runtime_choice.asked(runtime)
        if asked == "torch":
            return "torch", dtype
        given = dtype if asked is None else dtype or self.family.named_dtype
        return runtime_choice.choose(asked, self.timings, device=device, dtype=given)

    def timings(self, *, again: bool = False) -> Sequence[runtime_choice.Timing]:
        """Return the times of the runtimes on this machine, measured once and kept in the user's cache.

        Args:
            again: Measure even if there are times.
        """
        found = self.files
        context = None

        def trial(runtime: str, dtype: Dtype) -> runtime_choice.Trial:
            nonlocal context
            rows, query = self._sample_tokens()
            stages = self._in_torch(dtype) if runtime == "torch" else self.graphs(runtime, dtype)
            if context is None:  # once, by the first of the runtimes
                size, rest = found.config.context_size, np.zeros((0, found.config.dim), np.float32)
                read = stages.read(rows) if size else rest  # of the null context, that only others have
                context = read, ((size or 0) + np.arange(len(read))) // max(len(read), 1)
            prepared = stages.prepare(*context)
            return runtime_choice.Trial(
                runtime,
                dtype,
                lambda: stages.embed(rows, DOCUMENT, prepared, None, None),
                lambda: stages.embed(query, QUERY, prepared, None, None),
            )

        return runtime_choice.timings(found.digest, found.config.name, trial, again=again)

    def written(self) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
        """Yield the paths of the model's files, those of its parts included, with the result of `_files.written`.

        Raises:
            ModelError: A part is not installed.
            OSError: A folder cannot be read.
        """
        for folder in (*self.family.parts(self.folder), self.folder):
            for path in sorted(folder.iterdir()):
                if path.is_file():
                    yield str(path), written(path)

    def convert(self, target: Path) -> None:
        """Write a two-way model to a folder that is read without network.

        Raises:
            ModelError: The model cannot be read, needs no conversion, or the target exists or cannot be written.
        """
        if self.family.convert is None:
            raise ModelError(
                f"{self.name.base} works without network as it is; give its name or folder where it is used."
            )
        self.family.convert(self.folder, self.name, target)

    def copy(self, target: Path) -> None:
        """Copy the folder to another one, from which the model is read without network.

        Args:
            target: A folder that does not exist.

        Raises:
            ModelError: The files are missing, or the target exists or cannot be written.
        """
        if self.family.convert is not None:
            return self.family.convert(self.folder, self.name, target)
        if target.exists():
            raise ModelError(f"{target} exists already. Choose another folder, or remove it.")
        try:
            target.mkdir(parents=True)
            for file in (CONFIG, WEIGHTS, TOKENIZER, VOCABULARY):
                if file != VOCABULARY or (self.folder / file).exists():
                    shutil.copyfile(self.folder / file, target / file)
        except OSError as error:
            raise ModelError(f"{target}: not written ({error}). Choose a writable folder with space.") from error

    def _in_torch(self, dtype: str) -> StageRunner:
        network, *_ = self.network()
        from cde_rag.models.runtimes.torch_runner import TorchRunner

        return TorchRunner(network, "cpu", dtype)

    def _sample_tokens(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return the token ids of the sample's documents and of its query."""
        texts, question = runtime_choice.sample()
        if self.files.config.context_size:
            texts = [" ".join(texts[place::FEW_DOCUMENTS][:JOINED]) for place in range(FEW_DOCUMENTS)]
        length = self.files.config.max_length
        documents, query = ([row.ids for row in self.files.tokenizer(some, length)] for some in (texts, [question]))
        return documents, query
