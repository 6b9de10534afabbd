"""Training data of `train`: prepared pairs, or pairs that are prepared first."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from cde_rag._files import user_path
from cde_rag.errors import CorpusError
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag_training.clustering.surrogate import Surrogate, minilm
from cde_rag_training.data.pairs import Pair
from cde_rag_training.data.preparation import PrepareConfig, prepare
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.reading import PairReader
from cde_rag_training.processes import first_one_first
from cde_rag_training.recipe import RecipeError

Data = Prepared | Path | str | Sequence[Pair]
_OF_DATA = ("max_length", "surrogate", "filter_surrogate", "dims", "clusters")  # settings that each phase's data shows
TABLES = (".jsonl", ".csv", ".tsv", ".parquet", ".gz")  # files of pairs end in; other files are packed folders


def opened(data: Data, tokenizer: TextTokenizer, config: PrepareConfig, folder: Path) -> Prepared:
    """Open the data as prepared pairs, and prepare them first if needed.

    Args:
        data: Prepared pairs, their folder or packed file; or pairs, or a file of pairs, which are prepared in `folder`
            with MiniLM as surrogate, once.
        tokenizer: Tokenizer of the model that training starts from.
        config: How pairs are prepared.
        folder: For pairs.

    Raises:
        CorpusError: Pairs that cannot be used, or data that was prepared with another tokenizer.
        MissingExtraError: Pairs need the extra `train`.
        PreparedError: No prepared folder, or a damaged one.
        RecipeError: Pairs that are not prepared, and a filter_surrogate, or another surrogate than MiniLM; or data that
            was prepared in another way than `config` says.
    """
    prepared = data if isinstance(data, Prepared) else _prepared(data, tokenizer, config, folder)
    if prepared.tokenizer_sha256 != tokenizer.sha256:
        raise CorpusError(
            f"{prepared.folder}: expected token ids of the start's tokenizer {tokenizer.sha256[:16]}…, found those of "
            f"{prepared.tokenizer_sha256[:16]}…. Prepare the pairs with the model that training starts from."
        )
    _check_preparation(prepared, config)
    return prepared


def _check_preparation(prepared: Prepared, config: PrepareConfig) -> None:
    """Refuse data that was prepared in another way than a recipe says; settings that it does not change may differ.

    So may seeds: `cde-rag-train prepare --seed` takes one, and no recipe depends on it.
    """
    usual, found = _without_seed(asdict(PrepareConfig())), _without_seed(prepared.settings)
    for name, value in _without_seed(asdict(config)).items():
        if name not in _OF_DATA or value == usual[name] or found.get(name) in (value, None):
            continue
        if name == "clusters" and not isinstance(found[name], dict):
            continue  # levels of cde-rag-train cluster, which were chosen later
        raise RecipeError(
            f"Expected data prepared with {name} {value!r}, as the recipe's [prepare] says, found {found[name]!r} in "
            f"{prepared.folder}. Prepare it again, or leave the setting out of the recipe."
        )


def _without_seed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the seed of their clusters, if they are one level."""
    clusters = settings.get("clusters")
    if not isinstance(clusters, Mapping):
        return dict(settings)
    level = cast(Mapping[str, Any], clusters)
    return {**settings, "clusters": {name: value for name, value in level.items() if name != "seed"}}


def _prepared(
    data: Path | str | Sequence[Pair], tokenizer: TextTokenizer, config: PrepareConfig, folder: Path
) -> Prepared:
    if isinstance(data, Path | str):
        path = user_path(data)
        if path.suffix not in TABLES:
            return Prepared.load(path)
        pairs = PairReader(path)
    else:
        pairs = data
    name = f"minilm-{config.max_length}"
    other = {"filter_surrogate": config.filter_surrogate} if config.filter_surrogate else {}
    if config.surrogate not in (name, PrepareConfig().surrogate):
        other = {"surrogate": config.surrogate}
    for setting, found in other.items():
        raise RecipeError(
            f"Expected prepared pairs with prepare.{setting} {found!r}, found pairs, which are prepared with MiniLM "
            f"alone. Prepare them with cde-rag-train prepare --{setting.replace('_', '-')}."
        )
    config = replace(config, surrogate=name)  # vectors of texts cut elsewhere are others

    @cache
    def surrogate() -> Surrogate:  # not loaded where its vectors are kept already
        return minilm(max_length=config.max_length)

    with first_one_first():
        return prepare(pairs, tokenizer, folder, config, surrogate=lambda texts: surrogate()(texts))
