"""The table of families of models: how a folder or an identity is recognised, and how its model is loaded.

A new family is a folder with its config, network, graph and checkpoint, and one row. The networks of torch are imported
where they are read, so that other runtimes need no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

from cde_rag.context.identity import ModelIdentity
from cde_rag.errors import ModelError
from cde_rag.models.files import model_files
from cde_rag.models.files.names import ModelName
from cde_rag.models.one_way.config import ModelConfig, is_one_way
from cde_rag.models.one_way.graph_runner import GraphRunner, StoredModel
from cde_rag.models.pair.config import PairConfig, is_pair
from cde_rag.models.pair.graph import PairGraphRunner, StoredPair
from cde_rag.models.plain.function_model import FUNCTION
from cde_rag.models.plain.plain_model import PlainModel
from cde_rag.models.plain.sentence_transformer_model import SentenceTransformerModel
from cde_rag.models.runtimes.attention import Attention
from cde_rag.models.runtimes.runtime_choice import Runtime
from cde_rag.models.runtimes.stage_runner import Dtype, StageRunner
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.two_way.config import TwoWayConfig, is_published
from cde_rag.models.two_way.files import PublishedFiles
from cde_rag.models.two_way.graph_runner import TwoWayGraphRunner

if TYPE_CHECKING:
    from cde_rag.models.one_way.network import TwoStage
    from cde_rag.models.pair.network import PairNetwork
    from cde_rag.models.two_way.network import TwoWay

AnyConfig: TypeAlias = ModelConfig | PairConfig | TwoWayConfig
AnyNetwork: TypeAlias = Union["TwoStage", "TwoWay", "PairNetwork"]
AnyFiles: TypeAlias = StoredModel | PublishedFiles
Checkpoint: TypeAlias = tuple[AnyNetwork, TextTokenizer, str]
"""A network in float32 and evaluation mode, its tokenizer, and the digest of config and weights."""


@dataclass(frozen=True, kw_only=True)
class TwoStageFamily:
    """A family that `CDEModel` implements, with its parts in each runtime.

    Attributes:
        name: Name of its folder.
        owns: Recognises a folder by its config.json.
        files: Reads the files of a folder, under the options of a name.
        network: Loads the network in torch, from a folder and what `files` returns for it.
        graphs: Loads both stages in a runtime without torch, with a dtype.
        convert: Writes a folder that is read without network; None where a copy of the files is one.
        has_options: True if names have options, such as `?semantics=hub`.
        named_dtype: Dtype in a runtime that is named; None for the fastest that shares the vector space.
        parts: Returns the folders of other models that belong to one.
    """

    name: str
    owns: Callable[[Mapping[str, Any]], bool]
    files: Callable[[Path, ModelName], AnyFiles]
    network: Callable[[Path, Callable[[], Any]], Checkpoint]
    graphs: Callable[[Any, str, str], StageRunner]
    convert: Callable[[Path, ModelName, Path], None] | None = None
    has_options: bool = False
    named_dtype: Dtype | None = None
    parts: Callable[[Path], Sequence[Path]] = lambda _: ()


@dataclass(frozen=True, kw_only=True)
class PlainFamily:
    """A family of models that read each text by itself.

    Attributes:
        name: Name of the family.
        owns: Recognises the identity in a Context.
        load: Loads the model of an identity from a given place, None for its name, on a device, with a dtype, runtime,
            attention and mini batch size.
        has_files: False if a model has to be given.
    """

    name: str
    owns: Callable[[ModelIdentity], bool]
    load: Callable[
        [ModelIdentity, str | Path | None, str | None, Dtype | None, Runtime | None, Attention, int], PlainModel
    ]
    has_files: bool = True


def _one_way(folder: Path, _: Callable[[], object]) -> Checkpoint:
    from cde_rag.models.one_way import checkpoint as checkpoints

    return checkpoints.read(folder)


def _pair(folder: Path, _: Callable[[], object]) -> Checkpoint:
    from cde_rag.models.pair import checkpoint as pair_checkpoint

    return pair_checkpoint.read(folder)


def _two_way(_: Path, files: Callable[[], PublishedFiles]) -> Checkpoint:
    from cde_rag.models.two_way import checkpoint

    return checkpoint.read(files())


def _convert_two_way(folder: Path, name: ModelName, target: Path) -> None:
    from cde_rag.models.two_way import checkpoint

    checkpoint.convert(folder, name, target)


def _first_half(folder: Path) -> Sequence[Path]:
    pair = PairConfig.from_json(model_files.read_header(folder).config)
    return (model_files.first_half(pair.name, pair.first),)


def _sentence_transformer(
    identity: ModelIdentity,
    place: str | Path | None,
    device: str | None,
    dtype: Dtype | None,
    runtime: Runtime | None,
    attention: Attention,
    size: int,
) -> PlainModel:
    return SentenceTransformerModel(
        place or identity.name,
        max_length=identity.max_length or None,  # 0 of a model that reads texts of any length
        prefixes=identity.prefixes,
        windows=identity.windows,
        device=device,
        dtype=dtype,
        runtime=runtime,
        attn_implementation=attention,
        mini_batch_size=size,
    )


def _function(identity: ModelIdentity, place: object, *_: object) -> PlainModel:
    raise ModelError(
        f"The vectors were made with the function {identity.name!r}, which no file holds; found model={place!r:.80}. "
        f"Give it: Collection.open(store, model=FunctionEmbedder(function, name={identity.name!r})). If an API serves "
        f"it, name it again: openai:{identity.name}, or an address such as http://localhost:8000/v1#{identity.name}."
    )


TWO_STAGE: Final = (
    TwoStageFamily(
        name="two_way",
        owns=is_published,
        files=PublishedFiles.find,
        network=_two_way,
        graphs=TwoWayGraphRunner,
        convert=_convert_two_way,
        has_options=True,
        named_dtype="float32",  # bfloat16 shares the vector space of some models only
    ),
    TwoStageFamily(
        name="pair",
        owns=is_pair,
        files=lambda folder, _: StoredPair.read(folder),
        network=_pair,
        graphs=PairGraphRunner,
        parts=_first_half,
    ),
    TwoStageFamily(  # last, since a pair's config has the same digests
        name="one_way",
        owns=is_one_way,
        files=lambda folder, _: StoredModel.read(folder),
        network=_one_way,
        graphs=GraphRunner,
    ),
)
PLAIN: Final = (
    PlainFamily(name="function", owns=lambda identity: identity.pooling == FUNCTION, load=_function, has_files=False),
    PlainFamily(name="plain", owns=lambda identity: identity.is_plain, load=_sentence_transformer),
)


def two_stage_family(config: Mapping[str, Any]) -> TwoStageFamily | None:
    """Return the family that owns a folder by its config.json; None for other models, such as sentence-transformers."""
    return next((family for family in TWO_STAGE if family.owns(config)), None)
