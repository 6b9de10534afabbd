"""Shards of training texts with a teacher's embeddings, which are computed when they are first needed."""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from jaxtyping import Float16, Float32

from cde_rag._files import write_durably
from cde_rag.errors import CorpusError, ResumeError
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from lab.distil.training_texts import TrainingText

MANIFEST = "texts.json"
FORMAT = 1
SHARD_SIZE = 2048  # texts; at some 20 texts a second a kill costs less than two minutes


@runtime_checkable
class Teacher(Protocol):
    """Protocol of an embedder that is distilled; `ContextualEmbedder` is one."""

    @property
    def dim(self) -> int:
        """Dimensions of an embedding."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of everything that determines the vector space."""
        ...

    def embed_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "queries dim"]:
        """Embed queries, unit norm."""
        ...

    def embed_documents(self, texts: Sequence[str]) -> Float32[np.ndarray, "documents dim"]:
        """Embed documents, unit norm."""
        ...


class TeacherShards:
    """Folder of shards: texts in files named by their content, and their embeddings next to them.

    Args:
        folder: Made by `write_texts`.

    Attributes:
        folder: The folder.
        digest: sha256 hex of teacher, settings and all texts.
        teacher: Name of the teacher's model.
        counts: Number of queries and documents of each shard.

    Raises:
        CorpusError: No such folder, or a damaged or newer one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            content = (folder / MANIFEST).read_bytes()
            manifest: dict[str, Any] = json.loads(content)
            if manifest["format"] != FORMAT:
                raise ValueError(f"format {manifest['format']!r}, expected {FORMAT}")
            self.teacher = str(manifest["teacher"])
            self.space = str(manifest["space"])
            self.names = [str(name) for name in manifest["shards"]]
            self.counts = [(int(queries), int(documents)) for queries, documents in manifest["counts"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorpusError(
                f"Expected texts of a distillation in {folder}, found: {error}. Run python -m lab.distil prepare."
            ) from error
        self.digest = hashlib.sha256(content).hexdigest()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def texts(self) -> int:
        """Number of texts of all shards."""
        return sum(map(sum, self.counts))

    def read(self, number: int) -> list[TrainingText]:
        """Read the texts of a shard.

        Raises:
            CorpusError: The file is missing, or its content is not what its name says.
        """
        path = self.folder / f"{self.names[number]}.jsonl"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CorpusError(
                f"Expected a shard of texts at {path}, found: {error}. Prepare the texts again."
            ) from error
        if _digest(content) != self.names[number]:
            raise CorpusError(f"{path}: the content is not the one that its name is the digest of. Prepare it again.")
        rows = [cast("list[Any]", json.loads(line)) for line in content.decode().splitlines()]
        return [TrainingText(str(text), int(role)) for role, text in rows]

    def vectors(self, number: int, teacher: Callable[[], Teacher]) -> Float16[np.ndarray, "texts dim"]:
        """Return the teacher's embeddings of a shard's texts, computed once and read from a file after that.

        Args:
            number: Of the shard.
            teacher: Loads the teacher, if it is needed.

        Raises:
            CorpusError: The file of embeddings is damaged.
            ResumeError: The teacher has other weights than the one that the folder was prepared for.
        """
        path = self._vectors_path(number)
        if not path.exists():
            embedder = teacher()
            if (found := embedder.fingerprint) != self.space:
                raise ResumeError(
                    f"{self.folder} was prepared for {self.teacher} with the space {self.space[:16]}…, found "
                    f"{found[:16]}…. Prepare the texts again, into another folder."
                )
            buffer = io.BytesIO()
            np.save(buffer, embedded(embedder, self.read(number)).astype(np.float16), allow_pickle=False)
            write_durably(path, buffer.getvalue())
        try:
            vectors = cast("np.ndarray", np.load(path, allow_pickle=False))
        except (ValueError, EOFError, OSError) as error:
            raise CorpusError(f"{path}: expected an array, found: {error}. Delete it; it is computed again.") from error
        if vectors.dtype != np.float16 or len(vectors) != sum(self.counts[number]):
            raise CorpusError(
                f"{path}: expected {sum(self.counts[number])} rows of float16, found {len(vectors)} of "
                f"{vectors.dtype}. Delete it; it is computed again."
            )
        return vectors

    def is_embedded(self, number: int) -> bool:
        """Return True if the teacher's embeddings of a shard are on disk."""
        return self._vectors_path(number).exists()

    def _vectors_path(self, number: int) -> Path:
        return self.folder / f"{self.names[number]}-{self.space[:16]}.npy"


def write_texts(
    texts: Sequence[TrainingText], folder: Path, *, teacher: str, space: str, shard_size: int = SHARD_SIZE
) -> TeacherShards:
    """Write texts in shards; shards of the same content, and their embeddings, stay as they are.

    Args:
        texts: In the order of training.
        folder: Created if missing.
        teacher: Name of the teacher's model.
        space: Fingerprint of the teacher.
        shard_size: Texts of a shard; the last one may have fewer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    counts: list[tuple[int, int]] = []
    for start in range(0, len(texts), shard_size):
        part = texts[start : start + shard_size]
        content = "".join(json.dumps([role, text], ensure_ascii=False) + "\n" for text, role in part).encode()
        names.append(_digest(content))
        counts.append((sum(role == QUERY for _, role in part), sum(role == DOCUMENT for _, role in part)))
        path = folder / f"{names[-1]}.jsonl"
        if not path.exists():
            write_durably(path, content)
    manifest = {"format": FORMAT, "teacher": teacher, "space": space, "shards": names, "counts": counts}
    write_durably(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    return TeacherShards(folder)


def embedded(teacher: Teacher, texts: Sequence[TrainingText]) -> Float32[np.ndarray, "texts dim"]:
    """Embed texts by their roles."""
    vectors = np.zeros((len(texts), teacher.dim), dtype=np.float32)
    for role, embed in ((QUERY, teacher.embed_queries), (DOCUMENT, teacher.embed_documents)):
        places = [place for place, each in enumerate(texts) if each.role == role]
        if places:
            vectors[places] = embed([texts[place].text for place in places])
    return vectors


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
