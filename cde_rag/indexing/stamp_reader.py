"""Reader of embedding stamps, by the standard library alone: copy this file into any project. See docs/stamp.md.

stamp = parse(collection.metadata[KEY])
print(stamp.line)  # the model, prefixes and context of the vectors
vectors = [embed(canary.text, canary.role) for canary in stamp.canaries]
assert likeness(stamp, vectors) >= SAME  # this model made them
"""

import base64
import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

KEY: Final = "embedding_stamp"  # in a store's metadata; in a stamp, the key of its format's version
FORMAT: Final = 1
MOST_BYTES: Final = 16_384
MOST_NUMBERS: Final = 256  # of a canary's vector
SAME: Final = 0.9998  # least cosine of vectors of one space, over dtypes and batches
ROLES: Final = ("document", "query")
_TEXTS: Final = ("name", "revision", "weights_sha256", "tokenizer_sha256", "pooling", "normalisation")
_FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "model": {**dict.fromkeys(_TEXTS, str), "dim": int, "max_length": int},
    "prefixes": dict.fromkeys(ROLES, str),
    "context": {"fingerprint": str, "kind": str, "documents": int},
}


class StampError(ValueError):
    """A stamp that is damaged, too large or of a newer format, or vectors that cannot be compared with it."""


@dataclass(frozen=True)
class StampedText:
    """Canary: a text without prefix, its role, and every step-th number of its vector, `(kept,)`, at unit length."""

    text: str
    role: str
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Stamp:
    """Origin of the vectors of a collection; docs/stamp.md has the fields of model, prefixes and context."""

    model: Mapping[str, Any]
    prefixes: Mapping[str, str]
    context: Mapping[str, Any]
    canaries: tuple[StampedText, ...]

    @property
    def line(self) -> str:
        """One line that names the model, prefixes and context."""
        model, context = self.model, self.context
        weights = f" (weights {model['weights_sha256'][:12]}…)" if model["weights_sha256"] else ""
        prefixes = ", ".join(f"{role} {self.prefixes[role]!r}" for role in ROLES if self.prefixes[role]) or "none"
        documents = f" of {context['documents']} documents" if context["documents"] else ""
        return (
            f"{model['name']!r}{weights}, {model['dim']} numbers, {model['pooling']}, {model['normalisation']}; "
            f"prefixes: {prefixes}; context: {context['kind']}{documents}; space {context['fingerprint'][:16]}…"
        )


def parse(text: str) -> Stamp:
    """Read a stamp, and check its digest and all fields.

    Raises:
        StampError: It is damaged, too large, or of a newer format.
    """
    if not isinstance(text, str) or len(text) > MOST_BYTES:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise StampError(f"Expected a stamp of at most {MOST_BYTES} characters, found a longer one, or no text.")
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_float=_refused, parse_constant=_refused)
        _check(found, found[KEY])
        canaries = tuple(_canary(each, found["model"]["dim"]) for each in found["canaries"])
    except StampError:
        raise
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise StampError(f"Expected a stamp as JSON, found another text ({type(error).__name__}).") from error
    return Stamp(found["model"], found["prefixes"], found["context"], canaries)


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the sha256 of a stamp without its digest, as canonical JSON (RFC 8785), 64 hex digits."""
    return hashlib.sha256(canonical({key: content[key] for key in content if key != "digest"})).hexdigest()


def canonical(content: Mapping[str, Any]) -> bytes:
    """Serialise to the canonical JSON of texts, whole numbers, lists and objects."""
    return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def kept(vector: Sequence[float]) -> list[float]:
    """Return the numbers of a vector that are compared, `(kept,)`: at most 256, at equal steps, at unit length."""
    numbers = [float(number) for number in vector[:: -(-len(vector) // MOST_NUMBERS) or 1]]
    length = math.sqrt(sum(number * number for number in numbers))
    if not 0 < length < math.inf:
        raise StampError("Expected a vector with a direction, found zeros or numbers that are not finite.")
    return [number / length for number in numbers]


def likeness(stamp: Stamp, vectors: Sequence[Sequence[float]]) -> float:
    """Return the least cosine between the canaries' vectors and a model's `(canaries, dim)`, made with the prefixes.

    Raises:
        StampError: Vectors of another number or length, or without a direction.
    """
    count, dim, lengths = len(stamp.canaries), stamp.model["dim"], sorted({len(vector) for vector in vectors})
    if len(vectors) != count or lengths != [dim]:
        found = f"{len(vectors)} of length {', '.join(map(str, lengths)) or 0}"
        raise StampError(f"Expected {count} vectors of length {dim}, as the stamp has them, found {found}.")
    pairs = [(each.numbers, kept(vector)) for each, vector in zip(stamp.canaries, vectors, strict=True)]
    return min(sum(a * b for a, b in zip(own, other, strict=True)) for own, other in pairs)


def _check(found: Mapping[str, Any], version: object) -> None:
    if type(version) is not int or version != FORMAT:
        newer = " newer" if type(version) is int and version > FORMAT else ""
        raise StampError(f"Expected a stamp of format {FORMAT}, found the{newer} {version!r:.40}. Update the reader.")
    if found["digest"] != digest_of(found):
        raise StampError("Expected an intact stamp, found another digest: it was changed or cut. Write it again.")
    for name, fields in _FIELDS.items():
        for key, kind in fields.items():
            if type(found[name][key]) is not kind or (kind is int and found[name][key] < 0):
                raise StampError(f"Expected {name}.{key} as {kind.__name__}, found {found[name][key]!r:.40}.")
    if not 0 < found["model"]["dim"] <= 1_000_000 or not found["canaries"]:
        raise StampError("Expected a length of vectors and canaries, found none.")


def _canary(found: Mapping[str, Any], dim: int) -> StampedText:
    data, count = base64.b64decode(found["vector"], validate=True), len(range(0, dim, -(-dim // MOST_NUMBERS)))
    if len(data) != 2 * count:
        raise StampError(f"Expected canaries of {count} numbers, found one of {len(data) / 2:g}.")
    if type(found["text"]) is not str or found["role"] not in ROLES:
        raise StampError("Expected a canary's text and role, found others.")
    return StampedText(found["text"], found["role"], tuple(kept(struct.unpack(f"<{count}e", data))))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return found


def _refused(number: str) -> float:
    raise ValueError(f"{number:.20} is no whole number")
