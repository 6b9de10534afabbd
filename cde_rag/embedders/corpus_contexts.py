"""Contexts that a model makes of a sample of a corpus, or without one."""

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal, cast

import numpy as np
from jaxtyping import Float32

from cde_rag._validation import check_positive
from cde_rag.context.context import Context
from cde_rag.context.generic_documents import repeated
from cde_rag.context.identity import ARITHMETIC, HasIdentity, ModelIdentity
from cde_rag.context.sampling import (
    Sample,
    Strategy,
    Unit,
    sample_clusters,
    sample_random,
    sample_strata,
    warn_small_context,
)
from cde_rag.errors import CDEWarning, ContextError, warn_user
from cde_rag.models.model import Model
from cde_rag.models.plain.fixed_texts import PROBES
from cde_rag.models.refusals import read_in_halves

ANY_CONTEXT_SIZE = 512  # documents, where the model has no opinion
_STRATEGIES = ("random", "clusters", "strata")


def contextual_identity(model: Model, *, windows: bool | None = None) -> ModelIdentity:
    """Return the identity of a model's Contexts with a corpus: that of a plain model has a map of the corpus.

    Args:
        model: The model.
        windows: Read longer texts in windows, or cut them; None for a model's own way.

    Raises:
        TypeError: Windows for a plain model.
    """
    if windows is None or not model.identity.is_plain:
        identity = model.identity if windows is None else model.identity.with_windows(windows=windows)
        return replace(identity, attention=ARITHMETIC, corpus_map=True) if identity.is_plain else identity
    raise TypeError(
        f"{model.identity.name} is a plain model, which reads windows or cuts texts by its own setting. Leave windows "
        "out, and make the embedder with PlainEmbedder(name, windows=True)."
    )


def sampled(
    model: Model,
    identity: ModelIdentity,
    texts: Iterable[str],
    context_size: int | None,
    *,
    seed: int,
    strategy: Strategy | Literal["strata"] = "random",
    strata: Iterable[str] | None = None,
    source: str = "all",
    unit: Unit = "document",
) -> Context:
    """Sample a corpus, and make a Context of a model's under an identity; see `ContextualEmbedder.from_corpus`.

    Without a map of the corpus a plain model needs no sample. Raises and warns like `from_corpus`.
    """
    if strategy not in _STRATEGIES:
        raise ValueError(f"Expected strategy 'random', 'clusters' or 'strata', found {strategy!r}.")
    if (strategy == "strata") != (strata is not None):
        raise ValueError(f"strata and strategy='strata' come together; found strategy={strategy!r}.")
    size = check_positive(context_size_for(model, context_size), "context_size")
    if identity.is_plain and not identity.corpus_map:
        return bare(model, identity)
    if strategy == "random":
        sample = sample_random(texts, size, seed=seed)
    elif strategy == "clusters":
        sample = sample_clusters(texts, size, seed=seed, embed=lambda some: _unit(model.first_stage(some)))
    else:
        sample = sample_strata(texts, () if strata is None else strata, size, seed=seed)
    context = fit(model, sample, strategy=strategy, seed=seed, source=source, identity=identity)
    warn_small_context(len(sample.documents), size, unit)
    return context


def fit(
    model: Model,
    sample: Sample,
    *,
    strategy: str,
    seed: int,
    source: str = "all",
    identity: ModelIdentity | None = None,
) -> Context:
    """Run the first stage over a sample, repeated where the model expects more, and make the Context of it.

    A plain model may refuse some of the documents, which are left out.

    Warns:
        CDEWarning: It did, with one of them.
    """
    documents = repeated(sample.documents, model.context_size or 1)
    texts = list(dict.fromkeys(documents))
    texts, made = _readable(model, texts) if model.identity.is_plain else (texts, model.first_stage(texts))
    places = {text: place for place, text in enumerate(texts)}
    documents = [text for text in documents if text in places]
    vectors = made[[places[text] for text in documents]]
    fixed, fixed_vectors = model.fixed
    return Context.create(
        contextual_identity(model) if identity is None else identity,
        [*fixed, *documents],
        np.concatenate([fixed_vectors, vectors]),
        sampling=strategy,
        seed=seed,
        documents_seen=sample.documents_seen,
        source=source,
    )


def _readable(model: Model, texts: list[str]) -> tuple[list[str], Float32[np.ndarray, "texts dim"]]:
    """Embed the texts that a plain model reads; the warning names one of the others.

    Raises:
        Exception: That of the model, if it reads none.
    """
    read, made, faults = read_in_halves(
        texts, model.first_stage, probe=lambda: model.uncached().first_stage([PROBES[0]])
    )
    if faults:
        text, reason = faults[0]
        if not read:
            raise reason
        warn_user(
            f"{len(faults)} of {len(texts)} sampled documents are left out of the context, since the model refuses "
            f"them, such as {text!r:.80}: {reason}",
            CDEWarning,
        )
    return read, np.concatenate(made)


def first_context(model: Model) -> Context:
    """Return the Context of a collection that has no documents yet: the null one, or of generic texts without it."""
    if model.identity.is_plain:
        return bare(model, model.identity)
    return Context.null(model) if model.has_null else Context.generic(model)


def bare(model: Model, identity: ModelIdentity) -> Context:
    """Return the Context without a corpus: the null context, or that of the model's fixed texts."""
    fixed, vectors = model.fixed
    if fixed:
        return Context.create(identity, fixed, vectors, sampling="none", seed=0, documents_seen=0, source="probe")
    return Context.null(cast(HasIdentity, SimpleNamespace(identity=identity)))


def _unit(vectors: Float32[np.ndarray, "texts dim"]) -> Float32[np.ndarray, "texts dim"]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors if np.allclose(norms, 1, atol=1e-5) else vectors / norms  # what has norm 1 stays, to the bit


def context_size_for(model: Model, asked: int | None) -> int:
    """Return the number of context documents; ContextError if the model takes another number than requested."""
    expected = model.context_size
    if expected is None:
        return ANY_CONTEXT_SIZE if asked is None else asked
    if asked not in (None, expected):
        raise ContextError(
            f"{model.identity.name} expects {expected} context documents, found context_size={asked}. Give "
            f"context_size={expected}; for fewer load the model with CDEModel.from_pretrained(name, context_size=…)."
        )
    return expected
