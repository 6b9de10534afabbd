"""Manifests of stores and of their generations, public and stored, and the check of fingerprints."""

from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from cde_rag.errors import ContextMismatchError, StoreError

PENDING: Final = "pending_vectors"  # setting of a collection whose active generation may lack vectors


@runtime_checkable
class _Stored(Protocol):
    """Interface of a stored generation."""

    @property
    def number(self) -> int:
        """Number of the generation."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its vector space."""
        ...


State = TypeVar("State", bound=_Stored)


@dataclass(frozen=True, slots=True)
class Generation:
    """One complete set of vectors of a collection under one fingerprint.

    Attributes:
        number: 1, 2, 3 … in order of creation; never used twice.
        fingerprint: Names the vector space.
        active: True if searches and additions use it.
        vectors: How many records have a vector in it.
    """

    number: int
    fingerprint: str
    active: bool
    vectors: int


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """Manifest of a store.

    Attributes:
        dim: Length of a vector.
        fingerprint: Fingerprint of the active generation.
        generation: Number of the active generation.
        settings: Settings of the collection, written at creation (JSON object).
    """

    dim: int
    fingerprint: str
    generation: int
    settings: Mapping[str, Any]

    @property
    def may_wait(self) -> bool:
        """True if records may wait for their vectors in the active generation."""
        return PENDING in self.settings


@dataclass(frozen=True, slots=True)
class StoredGeneration:
    """One generation, as its store keeps it.

    Attributes:
        number: Number of the generation.
        fingerprint: Fingerprint of the vector space.
        context_sha256: Checksum of its Context's bytes.
    """

    number: int
    fingerprint: str
    context_sha256: str


class GenerationRow(NamedTuple):
    """One generation, as a store keeps it whose Contexts are in tables of their own."""

    number: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class StoredManifest(Generic[State]):
    """Manifest of a store, as it keeps it.

    Attributes:
        dim: Length of a vector.
        active: Number of the active generation.
        last: Number of the newest generation ever made.
        generations: All generations, oldest first.
    """

    dim: int
    active: int
    last: int
    generations: tuple[State, ...]

    @property
    def serving(self) -> State:
        """The active generation."""
        return self.generation(self.active)

    def generation(self, number: int) -> State:
        """Return the generation of a number.

        Raises:
            StoreError: There is none.
        """
        return numbered(self.generations, number)

    def inactive(self, number: int) -> State:
        """Return the generation of a number, which must not be the active one.

        Raises:
            StoreError: There is none, or it is the active one.
        """
        return numbered(self.generations, number, active=self.active)


class LeasedGenerations:
    """Fingerprints of generations by number, as a run saw them first while it holds the lease.

    Where a folder is restored to an earlier state, numbers come again: a run that named generation 2 must not write
    into another one of that number. Without a lease nothing is compared.
    """

    def __init__(self) -> None:
        self._seen: dict[int, str] | None = None
        self._run: Hashable = None

    @contextmanager
    def held(self, run: Hashable = None) -> Generator[None, None, None]:
        """Compare from now on, until the block ends; `run` is the token of this run, if the lease can be lost."""
        self._seen, self._run = {}, run
        try:
            yield
        finally:
            self._seen = self._run = None

    def check_run(self, run: Hashable) -> None:
        """Refuse to change a generation after another run took the lease.

        Args:
            run: Token of the run that took it last.

        Raises:
            StoreError: It is not this run.
        """
        if self._run is not None and self._run != run:
            raise StoreError(
                "This run lost its lease: another run took it while this one was suspended or cut off, or the store "
                "went back to an earlier state. It has changed nothing since. Start it again; embedded vectors stay."
            )

    def see(self, states: Iterable[_Stored]) -> None:
        """Note generations that are seen for the first time."""
        seen = self._seen
        for state in states:
            if seen is not None:
                seen.setdefault(state.number, state.fingerprint)

    def check(self, state: State) -> State:
        """Return a generation that the run names by its number.

        Raises:
            StoreError: It is another one than the run saw first.
        """
        self.see([state])
        seen = self._seen
        if seen is not None and seen[state.number] != state.fingerprint:
            raise StoreError(
                f"Generation {state.number} is in the space {state.fingerprint[:16]}…, and was in "
                f"{seen[state.number][:16]}… when this run began: the store was restored to an earlier state, and "
                "another run wrote it since. This run wrote nothing to it. Start it again."
            )
        return state


def check_space(generation: _Stored, fingerprint: str) -> None:
    """Refuse vectors of another vector space than a generation's.

    Raises:
        ContextMismatchError: The generation has another fingerprint.
    """
    if fingerprint != generation.fingerprint:
        raise ContextMismatchError(expected=generation.fingerprint, found=fingerprint)


def numbered(states: Sequence[State], number: int, *, active: int | None = None) -> State:
    """Return the generation of a number.

    Args:
        states: All generations of a store.
        number: Number of one of them.
        active: Number of a generation that is refused; None to allow any.

    Raises:
        StoreError: There is no generation of that number, or it is the refused one.
    """
    if number == active:
        raise StoreError(f"Expected an inactive generation, found {number}, which is active. Activate another first.")
    for state in states:
        if state.number == number:
            return state
    there = ", ".join(str(state.number) for state in states)
    raise StoreError(f"Expected a generation that is there ({there}), found {number}. See generations().")
