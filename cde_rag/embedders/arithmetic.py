"""Context by arithmetic for embedders that read none: a map of the corpus, and siblings mixed in."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import numpy as np
from jaxtyping import Float32
from tqdm import tqdm

from cde_rag._telemetry import operation, short
from cde_rag._validation import check_list, check_number, check_positive, check_texts, digest
from cde_rag.context.context import Context
from cde_rag.context.file_format import canonical_json
from cde_rag.context.identity import PLAIN, ModelIdentity
from cde_rag.context.sampling import sample_clusters, sample_random, warn_small_context
from cde_rag.context.siblings import SIBLINGS, sibling_texts
from cde_rag.embedders.function import AGREEMENT, FIXED, PROBE_DIGESTS, FunctionEmbedder, probe_context
from cde_rag.embedders.mixing import CorpusMap, mixed
from cde_rag.embedders.plain_vectors import PlainVectors
from cde_rag.embedders.protocol import Embedded, EmbedderOptions, warn_truncated
from cde_rag.errors import ContextMismatchError, CorpusError, ModelError

if TYPE_CHECKING:
    from cde_rag.embedders.sentence_transformer import PlainEmbedder

ARITHMETIC: Final = "arithmetic"  # the context attention of such an identity
CONTEXT_SIZE: Final = 512  # documents that the map of a corpus is fitted to
_MIX = re.compile(r"(?P<plain>.*); siblings (?P<weight>[0-9.e+-]+); corpus (?P<corpus>none|whitened)")
CHECKED: Final = 8  # vectors given to `keep` that are compared with the embedder's own
_AT_ONCE: Final = 512  # texts between two writes of plain vectors

AnyEmbedder: TypeAlias = "PlainEmbedder | FunctionEmbedder"
_Vectors: TypeAlias = dict[bytes, tuple[Float32[np.ndarray, " dim"], bool]]  # by text, with True for truncated ones


class ArithmeticEmbedder:
    """A plain embedder with context by arithmetic, from `ContextualEmbedder.from_corpus(texts, model=embedder)`.

    The vector of a document is `unit(p + weight · mean of its siblings' p)`, where p is its plain vector, mapped by the
    corpus; a query, and a document without siblings, is p. By default the corpus' map is on and the weight is 0
    (lab/pages/any-embedder.md). It is a class of its own because nothing of it runs inside the model: with the
    plain vectors at hand, new siblings and a new Context need no model.

    Plain vectors are kept once, in a `PlainVectors` file. A collection in a FaissStore or a QdrantEdgeStore keeps one
    in its folder. On a Qdrant server there is no folder: there the model embeds siblings again, unless a file is named:
    `collection.embedder = collection.embedder.keeping(PlainVectors("papers.sqlite"))`. Thread-safe if the embedder is.

    Args:
        plain: Embeds each text by itself.
        context: Made by `from_corpus` with the same embedder; it holds the weight and the sample of the corpus.
        vectors: Where plain vectors are kept; None to embed texts whenever they are needed.

    Raises:
        ContextMismatchError: The context was made with another embedder, or the model of its name has changed.
    """

    def __init__(self, plain: AnyEmbedder, context: Context, *, vectors: PlainVectors | None = None) -> None:
        self._mix = _Mix.of(context.identity)
        self.plain = _adopted(plain, context, self._mix)
        self.context = context
        self.vectors = vectors
        self._space = _space(context.identity, self._mix)
        sample = sample_of(context)
        self._sampled = _sampled(context) if isinstance(plain, FunctionEmbedder) else {}
        self._map = CorpusMap.fit(sample) if self._mix.corpus and len(sample) else None

    @classmethod
    def from_corpus(
        cls,
        texts: Iterable[str],
        *,
        model: AnyEmbedder,
        weight: float = 0.0,
        corpus: bool = True,
        context_size: int | None = None,
        seed: int = 0,
        strategy: str = "random",
        source: str = "all",
        vectors: PlainVectors | None = None,
    ) -> "ArithmeticEmbedder":
        """Make the Context of a corpus for a plain embedder.

        Args:
            texts: The documents as they will be embedded, in any order; only read if `corpus` is true.
            model: The plain embedder; it embeds the sample.
            weight: Weight of the siblings' mean; the document's own vector has 1. 0.3 gains where queries name the
                longer document or its subject, and loses where they do not; 0 for no siblings.
            corpus: Map all vectors, queries' too, by the second moments of a sample of the corpus.
            context_size: Documents of that sample, 512 by default; a smaller corpus is taken completely.
            seed: Random seed of the sample.
            strategy: "random" or "clusters"; see `ContextualEmbedder.from_corpus`.
            source: What `texts` are, for information, as there.
            vectors: As in the class.

        Raises:
            CorpusError: No text that is not blank, or one with a lone surrogate.
            TypeError: `texts` is a single str, `model` no plain embedder, or `weight` no number.
            ValueError: A negative or infinite `weight`, `context_size` below 1, or another strategy.

        Warns:
            SmallContextWarning: The corpus has fewer than 64 documents, and fewer than `context_size`.
        """
        check_list(texts, call="from_corpus")
        from cde_rag.embedders.sentence_transformer import PlainEmbedder

        if not isinstance(cast(object, model), PlainEmbedder | FunctionEmbedder):
            raise TypeError(
                f"Expected a PlainEmbedder or FunctionEmbedder, found {model!r:.80}. Make one: "
                'PlainEmbedder("a-sentence-transformers-model") or FunctionEmbedder(function, name="my-model-1").'
            )
        check_number(weight, "weight")
        if not 0 <= weight < float("inf"):
            raise ValueError(f"Expected a weight of 0 or more, found {weight!r}.")
        if strategy not in ("random", "clusters"):
            raise ValueError(f"Expected strategy 'random' or 'clusters', found {strategy!r}.")
        size = CONTEXT_SIZE if context_size is None else context_size
        check_positive(size, "context_size")
        mix = _Mix(model.identity.semantics, float(weight), corpus)
        identity = replace(model.identity, attention=ARITHMETIC, semantics=str(mix))
        bare = cls(model, _context(model, identity), vectors=vectors)
        if not corpus:
            return bare
        if strategy == "random":
            sample = sample_random(texts, size, seed=seed)
        else:
            sample = sample_clusters(texts, size, seed=seed, embed=lambda some: bare._read(some).vectors)
        found = bare._read(sample.documents).vectors
        warn_small_context(len(sample.documents), size)
        fixed, probe = (FIXED, model.probe) if isinstance(model, FunctionEmbedder) else ((), found[:0])
        context = Context.create(
            identity,
            [*fixed, *sample.documents],
            np.concatenate([probe, found]),
            sampling=strategy,
            seed=seed,
            documents_seen=sample.documents_seen,
            source=source,
        )
        return cls(model, context, vectors=vectors)

    def __repr__(self) -> str:
        return f"ArithmeticEmbedder({self.plain!r}, {self._mix.weight:g}{', corpus' if self._mix.corpus else ''})"

    @property
    def weight(self) -> float:
        """Weight of the siblings' mean; the document's own vector has weight 1."""
        return self._mix.weight

    @property
    def corpus(self) -> bool:
        """True if vectors are mapped by a sample of the corpus."""
        return self._mix.corpus

    @property
    def fingerprint(self) -> str:
        """Names the vector space, 64 hex digits."""
        return self.context.fingerprint

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return self.context.identity.dim

    @property
    def options(self) -> EmbedderOptions:
        """Device, dtype and batch size, for the embedder that follows this one."""
        return self.plain.options

    @property
    def max_siblings(self) -> int:
        """Siblings that are mixed into a document, at most; 0 if their weight is 0."""
        return SIBLINGS if self._mix.weight else 0

    def rebound(self, context: Context) -> "ArithmeticEmbedder | AnyEmbedder":
        """Bind the same plain embedder to another Context, or return it for its own.

        Raises:
            ContextMismatchError: The Context was made with another embedder.
        """
        if context.identity.attention == PLAIN:
            return self.plain.rebound(context)
        return ArithmeticEmbedder(self.plain, context, vectors=self.vectors)

    def keeping(self, vectors: PlainVectors | None) -> "ArithmeticEmbedder":
        """Return the same embedder with another place for plain vectors, or none."""
        other = copy(self)
        other.vectors = vectors
        return other

    def forget(self, texts: Sequence[str]) -> None:
        """Delete the plain vectors of texts that are deleted or replaced.

        Raises:
            StoreError: Their file cannot be written.
        """
        if self.vectors is not None:
            self.vectors.forget([digest(text) for text in texts])

    def keep(self, texts: Sequence[str], vectors: Float32[np.ndarray, "texts dim"], *, checked: int = CHECKED) -> None:
        """Keep plain vectors that are there already, such as those of an index, so that no model embeds these texts.

        Args:
            texts: Documents, as the embedder would be given them.
            vectors: Their plain vectors, of any length but zero; row i belongs to `texts[i]`.
            checked: Texts that are embedded and compared with the vectors given.

        Raises:
            ContextMismatchError: The vectors are not those that the embedder makes of the texts.
            ModelError: The embedder has no place for plain vectors, or they have another shape.
        """
        if self.vectors is None:
            raise ModelError('There is no place to keep vectors in. Name one: keeping(PlainVectors("papers.sqlite")).')
        if (
            vectors.shape != (len(texts), self.dim)
            or not (norms := np.linalg.norm(vectors, axis=1, keepdims=True)).all()
        ):
            raise ModelError(
                f"Expected vectors of shape {(len(texts), self.dim)} that are not zero, found {vectors.shape}."
            )
        given = vectors / norms
        count = min(checked, len(texts))
        some = [place * (len(texts) - 1) // max(count - 1, 1) for place in range(count)]
        made = self.plain.embed_passages([texts[place] for place in some], None)
        cosines = (made.vectors * given[some]).sum(axis=1)
        if (cosines < AGREEMENT).any():
            place = some[int(cosines.argmin())]
            raise ContextMismatchError(
                expected=self.fingerprint,
                found="",
                remedy=f"The vector given for the text {texts[place]!r:.60} has a cosine of {cosines.min():.3f} to "
                f"that of {self.context.identity.name!r}, expected {AGREEMENT} or more. Were the vectors made by this "
                "model, with these prefixes, of exactly these texts? Otherwise leave them out, and the model embeds "
                "the texts.",
            )
        self.vectors.put(
            self._space, {digest(text): (vector, False) for text, vector in zip(texts, given, strict=True)}
        )

    def embed_documents(
        self, texts: Sequence[str], *, parents: Sequence[str | None] | None = None, progress: bool = False
    ) -> Float32[np.ndarray, "documents dim"]:
        """Embed texts that are to be found.

        Args:
            texts: Documents.
            parents: The longer document that each text was cut from (None: none); texts of the same parent in this call
                are each other's siblings, in the order given.
            progress: Show a bar on stderr, if the plain embedder has one.

        Returns:
            Unit norm; row i belongs to `texts[i]`.

        Raises:
            CorpusError: A text is blank or holds a lone surrogate (with its position), or parents of another length.
            ModelError: Parents, where the weight of siblings is 0.
            TypeError: `texts` is a single str.

        Warns:
            TruncationWarning: Texts exceed the model's token limit, with their number.
        """
        check_list(texts, call="embed_documents")
        siblings = None
        if parents is not None:
            if not self.max_siblings:
                raise ModelError(
                    "Siblings have a weight of 0 in this context, found parents. Leave parents out, or make the "
                    "context with ArithmeticEmbedder.from_corpus(texts, model=embedder, weight=0.3)."
                )
            siblings = sibling_texts(parents, texts, SIBLINGS, rule=self.context.manifest.sibling_rule)
        embedded = self.embed_passages(texts, siblings, progress=progress)
        warn_truncated(embedded.truncated, self.context.identity)
        return embedded.vectors

    def embed_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "queries dim"]:
        """Embed texts that search. Returns, raises and warns like `embed_documents`."""
        vectors = self.plain.embed_queries(texts)
        return vectors if self._map is None else self._map.apply(vectors)

    def embed_passages(
        self, texts: Sequence[str], siblings: Sequence[Sequence[str]] | None, *, progress: bool = False
    ) -> Embedded:
        """Embed documents, each given exactly these siblings; for callers that keep track of parents themselves.

        Only texts without a kept plain vector go to the model, each once.

        Args:
            texts: Documents.
            siblings: For each text the texts of its siblings; None where no text has any.
            progress: As in `embed_documents`.

        Raises:
            CorpusError: As `embed_documents`.
        """
        check_texts(texts)
        if siblings is None or not self.max_siblings:
            siblings = [[] for _ in texts]
        places = {
            text: place for place, text in enumerate(dict.fromkeys([*texts, *(t for row in siblings for t in row)]))
        }
        with operation("cde_rag.embed", {"fingerprint": short(self.fingerprint), "documents": len(texts)}):
            read = self._read(list(places), progress=progress)
            pool = read.vectors if self._map is None else self._map.apply(read.vectors)
            own = [places[text] for text in texts]
            rows = [[places[text] for text in row] for row in siblings]
            return Embedded(mixed(pool[own], rows, pool, self._mix.weight), read.truncated[own])

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Count the tokens of all texts after truncation, as the plain embedder does."""
        return self.plain.count_tokens(texts)

    def _read(self, texts: Sequence[str], *, progress: bool = False) -> Embedded:
        """Return the plain vectors of different texts, kept or from the model; the latter are kept from then on."""
        keys = [digest(text) for text in texts]
        known = {} if self.vectors is None else self.vectors.get(self._space, keys, self.dim)
        given = {key: (self._sampled[key], False) for key in self._sampled.keys() & set(keys) - known.keys()}
        self._keep(given, known)
        missing = [place for place, key in enumerate(keys) if key not in known]
        # each answer of an API is kept, so that an error costs one call
        at_once = self.plain.texts_per_call if isinstance(self.plain, FunctionEmbedder) else _AT_ONCE
        with tqdm(total=len(missing), unit="text", disable=not progress) as bar:
            for start in range(0, len(missing), at_once):
                part = missing[start : start + at_once]
                try:
                    embedded = self.plain.embed_passages([texts[place] for place in part], None)
                except CorpusError as reason:
                    raise CorpusError(f"Among {len(part)} different texts and siblings: {reason}") from reason
                flags: list[bool] = embedded.truncated.tolist()
                self._keep({keys[place]: (embedded.vectors[row], flags[row]) for row, place in enumerate(part)}, known)
                bar.update(len(part))
        vectors = np.array([known[key][0] for key in keys], dtype=np.float32).reshape(-1, self.dim)
        return Embedded(vectors, np.array([known[key][1] for key in keys], dtype=np.bool_))

    def _keep(self, new: _Vectors, known: _Vectors) -> None:
        """Add plain vectors to those that are known, and keep them."""
        if self.vectors is not None and new:
            self.vectors.put(self._space, new)
        known.update(new)


@dataclass(frozen=True, slots=True)
class _Mix:
    """Arithmetic of a Context, as it is written into its identity.

    Attributes:
        plain: Semantics of the plain embedder's identity.
        weight: Weight of the siblings' mean.
        corpus: True if vectors are mapped by the corpus.
    """

    plain: str
    weight: float
    corpus: bool

    def __str__(self) -> str:
        return f"{self.plain}; siblings {self.weight!r}; corpus {'whitened' if self.corpus else 'none'}"

    @classmethod
    def of(cls, identity: ModelIdentity) -> "_Mix":
        found = _MIX.fullmatch(identity.semantics) if identity.attention == ARITHMETIC else None
        if found is None:
            raise ContextMismatchError(
                expected=identity.weights_sha256, found="", remedy=f"{identity.name!r} was used without arithmetic."
            )
        return cls(found["plain"], float(found["weight"]), found["corpus"] == "whitened")


@dataclass(frozen=True)
class _Named:
    identity: ModelIdentity


def _context(model: AnyEmbedder, identity: ModelIdentity) -> Context:
    """Return the Context without a sample of the corpus."""
    return (
        probe_context(identity, model.probe) if isinstance(model, FunctionEmbedder) else Context.null(_Named(identity))
    )


def _adopted(plain: AnyEmbedder, context: Context, mix: _Mix) -> AnyEmbedder:
    """Return the plain embedder that made a Context; raises where it is another."""
    if isinstance(plain, FunctionEmbedder):
        return plain.adopting(context)
    if replace(context.identity, attention=PLAIN, semantics=mix.plain, name="") != replace(plain.identity, name=""):
        raise ContextMismatchError(
            expected=context.identity.weights_sha256,
            found=plain.identity.weights_sha256,
            remedy=f"They were made with {context.identity.name!r}: Collection.open(store) brings it back.",
        )
    return plain


def _space(identity: ModelIdentity, mix: _Mix) -> str:
    """Return the name of the plain vectors' space: the same for every weight, sample and folder of the model."""
    plain = asdict(replace(identity, name="", attention=PLAIN, semantics=mix.plain))
    return hashlib.sha256(canonical_json(plain).encode()).hexdigest()


def _sampled(context: Context) -> dict[bytes, Float32[np.ndarray, " dim"]]:
    """Return the plain vectors of the corpus' sample in a Context by the sha256 of their texts."""
    digests = [row.tobytes() for row in context.digests]
    rows = dict(zip(digests, context.context_embeddings, strict=True))
    return {key: rows[key] for key in rows.keys() - set(PROBE_DIGESTS)}


def sample_of(context: Context) -> Float32[np.ndarray, "documents dim"]:
    """Return the plain vectors of the corpus' sample in a Context, without those of a function's fixed texts."""
    fixed = set(PROBE_DIGESTS)
    return context.context_embeddings[[row.tobytes() not in fixed for row in context.digests]]
