"""What a store of points knows of itself: one JSON object, replaced in one write."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cde_rag.errors import ContextMismatchError, StoreFormatError
from cde_rag.stores.base import StoreManifest
from cde_rag.stores.checks import numbered, seal

FORMAT: Final = 1


def vector_name(fingerprint: str) -> str:
    """Name of the vector that holds the embeddings of one space.

    Args:
        fingerprint: Of the Context, 64 hex digits.

    Returns:
        `"cde_"` and the fingerprint.
    """
    return f"cde_{fingerprint}"


@dataclass(frozen=True, slots=True)
class GenerationState:
    """One generation.

    Attributes:
        number: Of the generation.
        fingerprint: Names the vector space.
        context_sha256: Of its Context's bytes.
    """

    number: int
    fingerprint: str
    context_sha256: str

    @property
    def vector(self) -> str:
        """Name of its vectors, and of what is noted of them in a point's payload."""
        return vector_name(self.fingerprint)

    def check_space(self, fingerprint: str) -> None:
        """Refuse another vector space.

        Raises:
            ContextMismatchError: The generation has another fingerprint.
        """
        if fingerprint != self.fingerprint:
            raise ContextMismatchError(expected=self.fingerprint, found=fingerprint)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole store.

    Attributes:
        dim: Length of a vector.
        settings: What the collection wrote at creation, as JSON.
        active: Number of the active generation.
        last: Number of the newest generation ever made.
        generations: All that are there, oldest first.
        leftover: Fingerprints of generations that are being made or dropped; what there is of them counts for nothing.
        adopted: Whether it is made of someone else's points, which keep their ids, payload and vectors.
    """

    dim: int
    settings: str
    active: int
    last: int
    generations: tuple[GenerationState, ...]
    leftover: tuple[str, ...] = ()
    adopted: bool = False

    @property
    def serving(self) -> GenerationState:
        """The active generation."""
        return self.generation(self.active)

    def generation(self, number: int) -> GenerationState:
        """The generation of that number.

        Raises:
            StoreError: There is none.
        """
        return numbered(self.generations, number)

    def inactive(self, number: int) -> GenerationState:
        """The generation of that number, which is not the active one.

        Raises:
            StoreError: There is none, or it is the active one.
        """
        return numbered(self.generations, number, active=self.active)

    def public(self) -> StoreManifest:
        """What the Store protocol tells."""
        return StoreManifest(self.dim, self.serving.fingerprint, self.active, json.loads(self.settings))

    def to_metadata(self) -> dict[str, Any]:
        """As stored."""
        content = json.loads(json.dumps(dataclasses.asdict(self)))
        content |= {"format": FORMAT, "fingerprint": self.serving.fingerprint}
        if not self.adopted:
            del content["adopted"]  # as all versions read it
        return content | {"checksum": _checksum(content)}

    @classmethod
    def from_metadata(cls, stored: Mapping[str, Any], where: str) -> "Manifest":
        """Back from what `to_metadata` made.

        Raises:
            StoreFormatError: Damaged, or of a newer format.
        """
        if stored.get("format") != FORMAT:
            raise StoreFormatError(f"{where}: expected format {FORMAT}, found {stored.get('format')}. Update cde-rag.")
        content = {name: value for name, value in stored.items() if name != "checksum"}
        if _checksum(content) != stored.get("checksum"):
            raise StoreFormatError(f"{where}: expected a manifest with its checksum, found another. Restore a copy.")
        generations = tuple(GenerationState(**state) for state in content["generations"])
        plain = {name: content[name] for name in ("dim", "settings", "active", "last")}
        adopted = content.get("adopted", False)
        return cls(**plain, generations=generations, leftover=tuple(content["leftover"]), adopted=adopted)


def _checksum(content: Mapping[str, Any]) -> str:
    return seal(json.dumps(content, sort_keys=True)).hex()
