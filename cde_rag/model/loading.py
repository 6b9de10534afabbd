"""Loading of models by name: bundled models, folders and the hub, and the choice of their runtime."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, Union

import numpy as np
from jaxtyping import Float32, Int64

from cde_rag._files import written
from cde_rag.errors import ModelError, require
from cde_rag.model import hub, model_files
from cde_rag.model.config import ModelConfig
from cde_rag.model.model_files import CONFIG, TOKENIZER, VOCABULARY, WEIGHTS, read_header
from cde_rag.model.names import ModelName
from cde_rag.model.pair.pair_config import PairConfig, is_pair
from cde_rag.model.roles import DOCUMENT, QUERY
from cde_rag.model.runtimes import runtime_choice
from cde_rag.model.runtimes.graph_runner import GraphRunner, StoredModel
from cde_rag.model.runtimes.two_way_runner import TwoWayGraphRunner
from cde_rag.model.stage_runner import StageRunner
from cde_rag.model.tokenizer import TextTokenizer
from cde_rag.model.two_way.config import TwoWayConfig, is_published
from cde_rag.model.two_way.published_files import PublishedFiles
from cde_rag.model.weights import read_json

if TYPE_CHECKING:
    from cde_rag.model.pair.pair_network import PairNetwork
    from cde_rag.model.two_stage import TwoStage
    from cde_rag.model.two_way.network import TwoWay

AnyNetwork: TypeAlias = Union["TwoStage", "TwoWay", "PairNetwork"]
AnyGraphs: TypeAlias = GraphRunner | TwoWayGraphRunner
AnyFiles: TypeAlias = StoredModel | PublishedFiles
Sampled: TypeAlias = tuple[Float32[np.ndarray, "context dim"], Int64[np.ndarray, " context"]]
"""Vectors of a context and how often each stands in it."""
TWO_WAY_DOCUMENTS: Final = 2  # of the sample that two-way models are measured with: one takes a second
JOINED: Final = 4  # texts of the sample in each of them: the error of bfloat16 shows in long ones


def load(name: ModelName, *, token: str | None) -> "tuple[AnyNetwork, TextTokenizer, str, Path]":
    """Load a model's network, of torch.

    Args:
        name: Name of the model, with the options of its reading.
        token: Token for the hub.

    Returns:
        The network in float32 and evaluation mode, the tokenizer, the digest of config and weights, and the folder.

    Raises:
        MissingExtraError: torch is not installed; a two-way model needs `transformers`, one from the hub
            `huggingface_hub`.
        ModelError: No such model, or its files are incomplete, damaged, pickled or of a newer format.
    """
    folder, exact = resolve(name, token=token)
    return *read(folder, exact, partial(stored, folder, exact)), folder


def read(folder: Path, name: ModelName, files: Callable[[], AnyFiles]) -> "tuple[AnyNetwork, TextTokenizer, str]":
    """Read the network of a model's folder.

    Args:
        folder: Folder from `resolve`.
        name: Name from `resolve`, with the options of its reading.
        files: Returns the result of `stored`, which published models are read from.

    Raises:
        MissingExtraError: torch is not installed; a two-way model needs `transformers`.
        ModelError: Its files are incomplete, damaged, pickled or of a newer format.
    """
    require("torch", "torch")
    config = read_json(folder / CONFIG)
    if is_published(config) and isinstance(found := files(), PublishedFiles):
        from cde_rag.model.two_way import checkpoint

        return checkpoint.read(found)
    if name.has_options:
        raise _only_two_way(name)
    if is_pair(config):
        from cde_rag.model.pair import pair_checkpoint

        return pair_checkpoint.read(folder)
    from cde_rag.model import checkpoints

    return checkpoints.read(folder)


def chosen_runtime(
    folder: Path,
    name: ModelName,
    files: Callable[[], AnyFiles],
    *,
    runtime: str | None,
    device: str | None,
    dtype: str | None,
) -> tuple[str, str | None]:
    """Choose the runtime of a model, and its dtype: those that are given, or the fastest ones on this machine.

    The first choice for a model on a machine measures for some seconds, if several runtimes are installed.

    Args:
        folder: Folder from `resolve`.
        name: Name from `resolve`.
        files: Returns the result of `stored`, which is needed where runtimes are measured.
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
    if asked is not None and is_published(read_json(folder / CONFIG)):
        dtype = dtype or "float32"  # bfloat16 shares the vector space of some models only
    return runtime_choice.choose(asked, lambda: timings(folder, name, files()), device=device, dtype=dtype)


def stored(folder: Path, name: ModelName) -> AnyFiles:
    """Read a model's config and tokenizer, and check its files; its weights are read by a runtime without torch.

    Args:
        folder: Folder from `resolve`.
        name: Name from `resolve`, with the options of its reading.

    Raises:
        ModelError: Its files are incomplete, damaged, pickled or of a newer format.
    """
    if is_published(read_json(folder / CONFIG)):
        return PublishedFiles.find(folder, name)
    if name.has_options:
        raise _only_two_way(name)
    return StoredModel.read(folder)


def graphs(found: AnyFiles, runtime: str, dtype: str) -> AnyGraphs:
    """Load a model's stages in a runtime without torch.

    Args:
        found: Result of `stored`.
        runtime: "openvino" or "onnx".
        dtype: Dtype of the second stage's layers.

    Raises:
        MissingExtraError: The runtime, or `onnx`, is not installed.
        ModelError: The runtime has no such dtype, or the weights are damaged.
    """
    if isinstance(found, StoredModel):
        return GraphRunner(found, runtime, dtype)
    return TwoWayGraphRunner(found, runtime, dtype)


def timings(
    folder: Path, name: ModelName | None = None, files: AnyFiles | None = None, *, again: bool = False
) -> Sequence[runtime_choice.Timing]:
    """Return the times of a model's runtimes on this machine, measured once and kept in the user's cache.

    Args:
        folder: Folder of the model.
        name: Its name, with the options of its reading; None: a model without options.
        files: Result of `stored`, if it was read before: it hashes the weights of published models.
        again: Measure even if there are times.
    """
    name = name or ModelName(base=str(folder))
    found = files or stored(folder, name)
    context: Sampled | None = None

    def trial(runtime: str, dtype: str) -> runtime_choice.Trial:
        nonlocal context
        rows, query = _sample_tokens(found)
        stages = _torch_stages(folder, name, found, dtype) if runtime == "torch" else graphs(found, runtime, dtype)
        context = context or _sample_context(stages, found.config, rows)  # once, by the first of the runtimes
        prepared = stages.prepare(*context)
        return runtime_choice.Trial(
            stages.runtime,
            stages.dtype,
            lambda: stages.embed(rows, DOCUMENT, prepared, None, None),
            lambda: stages.embed(query, QUERY, prepared, None, None),
        )

    return runtime_choice.timings(found.digest, found.config.name, trial, again=again)


def _torch_stages(folder: Path, name: ModelName, found: AnyFiles, dtype: str) -> StageRunner:
    network, *_ = read(folder, name, lambda: found)
    from cde_rag.model.torch_runner import TorchRunner

    return TorchRunner(network, "cpu", dtype)


def _sample_tokens(files: AnyFiles) -> tuple[list[list[int]], list[list[int]]]:
    """Return the token ids of the sample's documents and of its query."""
    texts, question = runtime_choice.sample()
    if isinstance(files, PublishedFiles):
        texts = [" ".join(texts[place::TWO_WAY_DOCUMENTS][:JOINED]) for place in range(TWO_WAY_DOCUMENTS)]
    length = files.config.max_length
    documents, query = ([tokens.ids for tokens in files.tokenizer(some, length)] for some in (texts, [question]))
    return documents, query


def _sample_context(
    stages: StageRunner, config: ModelConfig | PairConfig | TwoWayConfig, rows: Sequence[Sequence[int]]
) -> Sampled:
    """Return the null context, or a context of the sample's documents, as two-way models may lack the former."""
    if isinstance(config, TwoWayConfig):
        return stages.read(rows), (config.context_size + np.arange(len(rows))) // len(rows)
    return np.zeros((0, config.dim), dtype=np.float32), np.zeros(0, dtype=np.int64)


def files_written(folder: Path) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """Yield the paths of a model's files, those of a pair's first half included, with the result of `written`.

    Raises:
        ModelError: The config is missing or no JSON object, or the first half is not installed.
        OSError: The folder cannot be read.
    """
    config = read_json(folder / CONFIG)
    if is_pair(config):
        pair = PairConfig.from_json(read_header(folder).config)
        yield from files_written(model_files.first_half(pair.name, pair.first))
    for path in sorted(folder.iterdir()):
        if path.is_file():
            yield str(path), written(path)


def _only_two_way(name: ModelName) -> ModelError:
    return ModelError(
        f"attention, semantics, sizes and prefixes are for two-way models; {name.base} is read in one way only."
    )


def convert(name: ModelName, target: Path, *, token: str | None) -> None:
    """Write a two-way model to a folder that is read without network.

    Raises:
        MissingExtraError: `huggingface_hub` is not installed.
        ModelError: The model cannot be read, needs no conversion, or the target exists or cannot be written.
    """
    folder, exact = resolve(name, token=token)
    if not is_published(read_json(folder / CONFIG)):
        raise ModelError(f"{name.base} works without network as it is; give its name or folder where it is used.")
    from cde_rag.model.two_way import checkpoint

    checkpoint.convert(folder, exact, target)


def copy(folder: Path, name: ModelName, target: Path) -> None:
    """Copy the folder of a loaded model to another one, from which it is read without network.

    Args:
        folder: Folder from `load`.
        name: Name in the model's identity.
        target: A folder that does not exist.

    Raises:
        ModelError: The files are missing, or the target exists or cannot be written.
    """
    if is_published(read_json(folder / CONFIG)):
        from cde_rag.model.two_way import checkpoint

        return checkpoint.convert(folder, name, target)
    if target.exists():
        raise ModelError(f"{target} exists already. Choose another folder, or remove it.")
    try:
        target.mkdir(parents=True)
        for file in (CONFIG, WEIGHTS, TOKENIZER, VOCABULARY):
            if file != VOCABULARY or (folder / file).exists():
                shutil.copyfile(folder / file, target / file)
    except OSError as error:
        raise ModelError(f"{target}: not written ({error}). Choose a writable folder with space.") from error


def resolve(name: ModelName, *, token: str | None) -> tuple[Path, ModelName]:
    """Return the folder of a model, downloaded if necessary, and the name under which it is found again.

    Raises:
        MissingExtraError: `huggingface_hub` is not installed.
        ModelError: There is no such model.
    """
    folder = model_files.local(name.base)
    if folder is None and name.is_hub_id:
        folder = hub.fetch(name.base, revision=name.revision, token=token)
        return folder, replace(name, revision=folder.name)
    if name.revision is not None:
        raise ModelError(f"A revision is for models of the hub; {name.base!r} is none. Leave the revision out.")
    folder = model_files.find(name.base)
    return folder, replace(name, base=str(folder.resolve()))
