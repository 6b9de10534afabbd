"""PlainModel: base of models that read each text by itself; a corpus and siblings come in by arithmetic.

The vector of a document is `unit(p + weight · mean of its siblings' p)`, where p is its plain vector, mapped by the
corpus; a query, and a document without siblings, is p. Nothing of it runs inside the model: with the plain vectors at
hand, new siblings and a new Context need no model.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from jaxtyping import Float32
from tqdm import tqdm

from cde_rag._validation import check_texts, digest
from cde_rag.context.context import Context
from cde_rag.context.file_format import canonical_json
from cde_rag.context.identity import ARITHMETIC
from cde_rag.context.siblings import SIBLINGS
from cde_rag.errors import ContextMismatchError, CorpusError, ModelError
from cde_rag.models.files.vector_cache import PlainVectors
from cde_rag.models.model import CHECKED, Embedded, Model
from cde_rag.models.plain.corpus_map import CorpusMap, mixed
from cde_rag.models.plain.fixed_texts import of_corpus
from cde_rag.models.runtimes.stage_runner import DOCUMENT

AGREEMENT: Final = 0.999  # least cosine of a text's vectors in one space; APIs round differently from call to call
_AT_ONCE: Final = 512  # texts between two writes of plain vectors
_Vectors: TypeAlias = dict[bytes, tuple[Float32[np.ndarray, " dim"], bool]]  # by text, with True for truncated ones


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """Changes that a Context makes to plain vectors.

    Attributes:
        weight: Weight of the siblings' mean.
        map: Map of the corpus; None if vectors are not mapped.
        sampled: Plain vectors of the corpus' sample, by the sha256 of their texts, that need not be made again.
    """

    weight: float
    map: CorpusMap | None
    sampled: Mapping[bytes, Float32[np.ndarray, " dim"]]

    def mapped(self, vectors: Float32[np.ndarray, "texts dim"]) -> Float32[np.ndarray, "texts dim"]:
        """Map plain vectors by the corpus."""
        return vectors if self.map is None else self.map.apply(vectors)


class PlainModel(Model):
    """Base of models that read each text by itself; see `Model`. A subclass embeds texts in a role.

    Plain vectors are kept where `vectors` says, once for all Contexts: texts that are kept need no model.

    Attributes:
        reuses: True if vectors of a Context's documents may be used instead of the model.
    """

    reuses: bool = True
    max_siblings = SIBLINGS

    @property
    def _space(self) -> str:
        """Name of the plain vectors' space: the same for every weight, sample and folder of the model."""
        return hashlib.sha256(canonical_json(replace(self.identity, name="").to_json()).encode()).hexdigest()

    def with_plain_vectors(self, plain_vectors: PlainVectors | None) -> "PlainModel":
        """Return the same model with another place for plain vectors, or none."""
        other = copy(self)
        other.plain_vectors = plain_vectors
        return other

    def uncached(self) -> "PlainModel":
        """Return the same model without kept vectors, be they in a file or in a Context."""
        other = self.with_plain_vectors(None)
        other.reuses = False
        return other

    def first_stage(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        """Embed each text by itself: the plain vectors of different texts, kept or from the model."""
        return self.read(texts, self.mini_batch_size, {}).vectors

    def prepare(self, context: Context) -> Arithmetic | None:
        """Fit the map of a Context's corpus; None for a Context without arithmetic.

        Raises:
            ContextMismatchError: The Context was made by another model.
        """
        self.known(context)
        identity = context.identity
        if identity.attention != ARITHMETIC:
            return None
        sample = context.context_embeddings[of_corpus(context)]
        corpus = CorpusMap.fit(sample) if identity.corpus_map and len(sample) else None
        return Arithmetic(identity.sibling_weight, corpus, self.reusable(context) if self.reuses else {})

    def embed(
        self,
        texts: Sequence[str],
        role: int,
        prepared: Arithmetic | None,
        siblings: Sequence[Sequence[str]] | None,
        *,
        windows: bool,  # noqa: ARG002 (the model's own setting)
        mini_batch_size: int,
        progress: bool = False,
    ) -> Embedded:
        """Embed texts; of documents under arithmetic only those without a kept vector go to the model, each once."""
        check_texts(texts)
        if prepared is None and siblings is not None and any(siblings):
            raise ModelError(f"{self.identity.name} reads no siblings: it is a plain model. Leave parents out.")
        if prepared is None or role != DOCUMENT:
            made = self.plain(texts, role, mini_batch_size, progress=progress)
            return made if prepared is None else Embedded(prepared.mapped(made.vectors), made.truncated)
        if siblings is None or not prepared.weight:
            siblings = [[] for _ in texts]
        different = dict.fromkeys([*texts, *(text for row in siblings for text in row)])
        places = {text: place for place, text in enumerate(different)}
        read = self.read(list(places), mini_batch_size, prepared.sampled, progress=progress)
        pool, own = prepared.mapped(read.vectors), [places[text] for text in texts]
        rows = [[places[text] for text in row] for row in siblings]
        return Embedded(mixed(pool[own], rows, pool, prepared.weight), read.truncated[own])

    def read(
        self,
        texts: Sequence[str],
        mini_batch_size: int,
        given: Mapping[bytes, Float32[np.ndarray, " dim"]],
        *,
        progress: bool = False,
    ) -> Embedded:
        """Return the plain vectors of different texts, kept, given or from the model; all are kept from then on."""
        keys = [digest(text) for text in texts]
        known: _Vectors = {} if self.plain_vectors is None else self.plain_vectors.get(self._space, keys, self.dim)
        self._keep({key: (given[key], False) for key in given.keys() & set(keys) - known.keys()}, known)
        missing = [place for place, key in enumerate(keys) if key not in known]
        at_once = self.texts_at_once(mini_batch_size)
        with tqdm(total=len(missing), unit="text", disable=not progress) as bar:
            for start in range(0, len(missing), at_once):
                part = missing[start : start + at_once]
                try:
                    embedded = self.plain([texts[place] for place in part], DOCUMENT, mini_batch_size)
                except CorpusError as reason:
                    raise CorpusError(f"Among {len(part)} different texts and siblings: {reason}") from reason
                flags: list[bool] = embedded.truncated.tolist()
                self._keep({keys[place]: (embedded.vectors[row], flags[row]) for row, place in enumerate(part)}, known)
                bar.update(len(part))
        vectors = np.array([known[key][0] for key in keys], dtype=np.float32).reshape(-1, self.dim)
        return Embedded(vectors, np.array([known[key][1] for key in keys], dtype=np.bool_))

    def texts_at_once(self, mini_batch_size: int) -> int:  # noqa: ARG002
        """Return how many texts are embedded between two writes of plain vectors."""
        return _AT_ONCE

    def reusable(self, context: Context) -> Mapping[bytes, Float32[np.ndarray, " dim"]]:  # noqa: ARG002
        """Return the plain vectors of a Context's documents that are used instead of the model."""
        return {}

    def keep(self, texts: Sequence[str], vectors: Float32[np.ndarray, "texts dim"], *, checked: int = CHECKED) -> None:
        """Keep plain vectors that are there already; see `ContextualEmbedder.keep`."""
        if self.plain_vectors is None:
            super().keep(texts, vectors, checked=checked)
        given = np.asarray(vectors)
        if given.shape != (len(texts), self.dim) or not given.any(axis=1).all():
            raise ModelError(
                f"Expected vectors of shape {(len(texts), self.dim)} that are not zero, found {given.shape}."
            )
        given = given / np.linalg.norm(given, axis=1, keepdims=True)
        count = min(checked, len(texts))
        some = [place * (len(texts) - 1) // max(count - 1, 1) for place in range(count)]
        made = self.plain([texts[place] for place in some], DOCUMENT, self.mini_batch_size)
        cosines = (made.vectors * given[some]).sum(axis=1)
        if (cosines < AGREEMENT).any():
            place = some[int(cosines.argmin())]
            raise ContextMismatchError(
                expected=self.identity.weights_sha256,
                found="",
                remedy=f"The vector given for the text {texts[place]!r:.60} has a cosine of {cosines.min():.3f} to "
                f"that of {self.identity.name!r}, expected {AGREEMENT} or more. Were the vectors made by this model, "
                "with these prefixes, of exactly these texts? Otherwise leave them out, and the model embeds the "
                "texts.",
            )
        self._keep({digest(text): (vector, False) for text, vector in zip(texts, given, strict=True)}, {})

    def _keep(self, new: _Vectors, known: _Vectors) -> None:
        """Add plain vectors to those that are known, and keep them."""
        if self.plain_vectors is not None and new:
            self.plain_vectors.put(self._space, new)
        known.update(new)

    @abstractmethod
    def plain(self, texts: Sequence[str], role: int, mini_batch_size: int, *, progress: bool = False) -> Embedded:
        """Embed each text by itself, without any cache."""
