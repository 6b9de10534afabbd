"""Dynamic batching: texts of concurrent calls are embedded together, up to a token budget."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from jaxtyping import Float32

from cde_rag._validation import check_texts
from cde_rag.context.context import Context
from cde_rag.embedders.protocol import Embedded, Embedder, EmbedderOptions
from cde_rag.server.error_responses import RequestError

Role: TypeAlias = Literal["query", "document"]
OnBatch: TypeAlias = Callable[[int, int, float], None]
"""Called after each batch with its texts, its tokens and its seconds."""

BATCH_TOKENS: Final = 8_192
PENDING_TOKENS: Final = 2_000_000
_TOKENS_PER_SECOND: Final = 5_000.0  # before the first batch is measured; for Retry-After only


@dataclass
class _Call:
    """One call's vectors, filled piece by piece."""

    vectors: Float32[np.ndarray, "texts dim"]
    truncated: list[bool]
    missing: int  # texts
    future: "Future[Embedded]"
    taken: int = 0  # tokens that went into batches


@dataclass(frozen=True)
class _Piece:
    """Texts of one call that go into one batch, with the position of the first of them in the call."""

    call: _Call
    embedder: Embedder
    role: Role
    texts: Sequence[str]
    siblings: Sequence[Sequence[str]] | None
    first: int
    tokens: int

    def fits(self, other: "_Piece") -> bool:
        """Return True if the other piece can be in the same forward pass."""
        own, others = (self.embedder, self.role, self.siblings is None), (other.embedder, other.role)
        return own == (*others, other.siblings is None)


class TokenBatcher:
    """One thread that embeds the texts of all calls, in common batches up to a token budget. Thread-safe.

    While a batch is embedded, later calls wait and form the next one: a single call never waits for others to arrive. A
    long call is cut into pieces. Every other batch begins with the oldest piece, so that no call waits for ever; those
    between begin with the call of which the fewest tokens were embedded, so that short ones do not wait for long ones.

    Args:
        batch_tokens: Tokens of a batch; one text alone may have more.
        pending_tokens: Tokens that may wait or be embedded at one time; more are refused.
        on_batch: Called after each batch.
    """

    def __init__(
        self, *, batch_tokens: int = BATCH_TOKENS, pending_tokens: int = PENDING_TOKENS, on_batch: OnBatch | None = None
    ) -> None:
        self.batch_tokens = batch_tokens
        self.pending_tokens = pending_tokens
        self.on_batch = on_batch
        self._pieces: deque[_Piece] = deque()
        self._pending = 0
        self._speed = _TOKENS_PER_SECOND
        self._closed = False
        self._oldest_first = True  # in the next batch
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="cde-rag embeds", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Tokens that wait or are being embedded."""
        return self._pending

    def submit(
        self,
        embedder: Embedder,
        role: Role,
        texts: Sequence[str],
        tokens: Sequence[int],
        siblings: Sequence[Sequence[str]] | None = None,
    ) -> "Future[Embedded]":
        """Queue texts to be embedded; the future's vectors stand in the order of the texts.

        Args:
            embedder: Embedder of the texts.
            role: "query" or "document".
            texts: Texts that can be embedded.
            tokens: Number of tokens of each text.
            siblings: For each document the texts of its siblings, as in `Embedder.embed_passages`; None: no siblings.

        Raises:
            RequestError: 413 for more tokens than may ever wait; 429 for more than may wait in addition to the present
                ones, with the seconds after which to try again; 503 while the server stops.
        """
        total = sum(tokens)
        call = _Call(np.empty((len(texts), embedder.dim), np.float32), [False] * len(texts), len(texts), Future())
        with self._changed:
            self._admit(total)
            self._pending += total
            self._pieces.extend(self._cut(_Piece(call, embedder, role, texts, siblings, 0, total), tokens))
            self._changed.notify()
        if not texts:
            call.future.set_result(Embedded(call.vectors, np.zeros(0, np.bool_)))
        return call.future

    @contextmanager
    def reserved(self, tokens: int) -> Generator[None, None, None]:
        """Count tokens that are embedded outside the batches as pending ones.

        Raises:
            RequestError: As in `submit`.
        """
        with self._changed:
            self._admit(tokens)
            self._pending += tokens
        try:
            yield
        finally:
            with self._changed:
                self._pending -= tokens

    def close(self) -> None:
        """Embed the queued texts, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _admit(self, tokens: int) -> None:
        if self._closed:
            raise RequestError(503, "The server is stopping. Send the request again in a moment.", code="stopping")
        if tokens > self.pending_tokens:
            raise RequestError(
                413,
                f"The request has {tokens:,} tokens, and the server takes {self.pending_tokens:,} at one time. Send "
                "fewer texts per request, or start the server with larger --pending-tokens.",
                code="request_too_large",
            )
        if self._pending + tokens > self.pending_tokens:
            wait = max(1, math.ceil((self._pending + tokens - self.pending_tokens) / self._speed))
            raise RequestError(
                429,
                f"{self._pending:,} tokens wait to be embedded, and the server takes {self.pending_tokens:,} at one "
                f"time. Send the request again in {wait} s.",
                code="queue_full",
                headers={"Retry-After": str(wait)},
            )

    def _cut(self, whole: _Piece, tokens: Sequence[int]) -> Iterator[_Piece]:
        """Cut a call into pieces of at most `batch_tokens` tokens, or of one text."""
        start = taken = 0
        for place, count in enumerate([*tokens, math.inf]):
            if place > start and taken + count > self.batch_tokens:
                part = slice(start, place)
                siblings = None if whole.siblings is None else whole.siblings[part]
                texts = whole.texts[part]
                yield _Piece(whole.call, whole.embedder, whole.role, texts, siblings, start, sum(tokens[part]))
                start, taken = place, 0
            taken += int(count) if count != math.inf else 0

    def _work(self) -> None:
        while batch := self._next():
            started, tokens = time.monotonic(), sum(piece.tokens for piece in batch)
            try:
                self._embed(batch)
            except BaseException as error:  # noqa: BLE001 (a panic of a tokenizer is no Exception; other calls go on)
                for piece in batch:
                    with suppress(InvalidStateError):
                        piece.call.future.set_exception(error)
            elapsed = time.monotonic() - started
            with self._changed:
                self._pending -= tokens
                self._speed += 0.1 * (tokens / max(elapsed, 1e-6) - self._speed)  # moving average
            if self.on_batch is not None:
                self.on_batch(sum(len(piece.texts) for piece in batch), tokens, elapsed)

    def _next(self) -> list[_Piece]:
        """Wait for pieces, and take one with all that fit into its batch; none once closed and empty."""
        with self._changed:
            while True:
                while not self._pieces and not self._closed:
                    self._changed.wait()
                batch = self._taken()
                if batch or self._closed:
                    return batch

    def _taken(self) -> list[_Piece]:
        waiting = list[_Piece]()
        for piece in self._pieces:
            if piece.call.future.done():  # its client has left, or another piece of it failed
                self._pending -= piece.tokens
            else:
                waiting.append(piece)
        order = waiting if self._oldest_first else sorted(waiting, key=lambda piece: piece.call.taken)
        batch, chosen, taken = list[_Piece](), set[int](), 0
        for piece in order:
            if not batch or (batch[0].fits(piece) and taken + piece.tokens <= self.batch_tokens):
                batch.append(piece)
                chosen.add(id(piece))
                taken += piece.tokens
                piece.call.taken += piece.tokens
        self._pieces = deque(piece for piece in waiting if id(piece) not in chosen)
        self._oldest_first = not self._oldest_first
        return batch

    def _embed(self, batch: Sequence[_Piece]) -> None:
        """Embed one batch; after an error each piece alone, so that one call's texts cannot fail another's."""
        try:
            made = _embedded(batch)
        except Exception as error:  # noqa: BLE001 (it is the callers')
            if len(batch) > 1:
                for piece in batch:
                    self._embed([piece])
            else:
                with suppress(InvalidStateError):
                    batch[0].call.future.set_exception(error)
            return
        start = 0
        for piece in batch:
            part, place = slice(start, start + len(piece.texts)), slice(piece.first, piece.first + len(piece.texts))
            call = piece.call
            call.vectors[place] = made.vectors[part]
            call.truncated[place] = made.truncated[part].tolist()
            call.missing -= len(piece.texts)
            start = part.stop
            if not call.missing:
                with suppress(InvalidStateError):  # cancelled, or another piece of it failed
                    call.future.set_result(Embedded(call.vectors, np.array(call.truncated, np.bool_)))


def _embedded(batch: Sequence[_Piece]) -> Embedded:
    texts = [text for piece in batch for text in piece.texts]
    head = batch[0]
    if head.role == "query":
        vectors = head.embedder.embed_queries(texts)
        return Embedded(vectors, np.zeros(len(texts), np.bool_))
    siblings = None if head.siblings is None else [row for piece in batch for row in piece.siblings or ()]
    return head.embedder.embed_passages(texts, siblings)


def token_counts(embedder: Embedder, texts: Sequence[str]) -> list[int]:
    """Count the tokens of each text after truncation.

    Raises:
        CorpusError: A text is blank or no valid Unicode, with its position.
    """
    check_texts(texts)
    return [embedder.count_tokens([text]) for text in texts]


@dataclass(frozen=True, eq=False)
class BatchedEmbedder:
    """An embedder whose texts go through a batcher, together with those of other threads.

    Attributes:
        embedder: Embedder that embeds.
        batcher: Batcher of its texts.
    """

    embedder: Embedder
    batcher: TokenBatcher

    @property
    def context(self) -> Context:
        """Context stored with the vectors."""
        return self.embedder.context

    @property
    def fingerprint(self) -> str:
        """Names the vector space, 64 hex digits."""
        return self.embedder.fingerprint

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return self.embedder.dim

    @property
    def options(self) -> EmbedderOptions:
        """Device, dtype and batch size."""
        return self.embedder.options

    @property
    def max_siblings(self) -> int:
        """Siblings that are read with a document, at most."""
        return self.embedder.max_siblings

    def embed_documents(
        self, texts: Sequence[str], *, parents: Sequence[str | None] | None = None, progress: bool = False
    ) -> Float32[np.ndarray, "documents dim"]:
        """Embed texts that are to be found; with parents, without the batcher."""
        if parents is not None:
            return self.embedder.embed_documents(texts, parents=parents, progress=progress)
        return self.embed_passages(texts, None).vectors

    def embed_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "queries dim"]:
        """Embed texts that search."""
        return self.batcher.submit(self.embedder, "query", texts, token_counts(self.embedder, texts)).result().vectors

    def embed_passages(
        self, texts: Sequence[str], siblings: Sequence[Sequence[str]] | None, *, progress: bool = False
    ) -> Embedded:
        """Embed documents, each given exactly these siblings; with a progress bar, without the batcher."""
        if progress:
            return self.embedder.embed_passages(texts, siblings, progress=True)
        tokens = token_counts(self.embedder, texts)
        return self.batcher.submit(self.embedder, "document", texts, tokens, siblings).result()

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Count the tokens of all texts after truncation."""
        return self.embedder.count_tokens(texts)

    def with_context(self, context: Context) -> "BatchedEmbedder":
        """Return an embedder of the same model in another Context."""
        return self.with_embedder(self.embedder.with_context(context))

    def with_embedder(self, embedder: Embedder) -> "BatchedEmbedder":
        """Return the same batcher for another embedder."""
        return BatchedEmbedder(embedder, self.batcher)
