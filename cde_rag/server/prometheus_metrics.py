"""Metrics of a server in Prometheus' format: counts, without texts, ids or keys."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from cde_rag.server.token_batcher import TokenBatcher

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class PrometheusMetrics:
    """Counts of requests and batches.

    Args:
        batcher: Batcher whose queue is shown.
    """

    def __init__(self, batcher: TokenBatcher) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "cde_rag_requests", "Requests that were answered.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "cde_rag_request_seconds", "Seconds of a request.", ["route"], registry=self._registry
        )
        self._tokens = Counter("cde_rag_tokens", "Tokens that were embedded.", registry=self._registry)
        self._texts = Histogram("cde_rag_batch_texts", "Texts of a batch.", buckets=_SIZES, registry=self._registry)
        self._busy = Counter("cde_rag_embedding_seconds", "Seconds in which the models ran.", registry=self._registry)
        pending = Gauge("cde_rag_pending_tokens", "Tokens that wait or are embedded.", registry=self._registry)
        pending.set_function(lambda: batcher.pending)
        batcher.on_batch = self.batch

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, texts: int, tokens: int, seconds: float) -> None:
        """Count a batch."""
        self._texts.observe(texts)
        self._tokens.inc(tokens)
        self._busy.inc(seconds)

    def text(self) -> bytes:
        """Return the counts in Prometheus' text format."""
        return generate_latest(self._registry)
