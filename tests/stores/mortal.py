"""A client of Qdrant whose process is killed at a request, or that others precede, while the server lives on."""

from collections.abc import Callable
from typing import Any

from qdrant_client import QdrantClient


class Killed(BaseException):
    pass


WRITES = frozenset(
    "create_collection update_collection upsert batch_update_points delete delete_payload create_vector_name "
    "delete_vector_name set_payload update_vectors delete_vectors delete_collection".split()
)
READS = frozenset("retrieve scroll query_points query_batch_points count get_collection".split())


class Mortal:
    """Kills the process that uses a client before, or just after, one of its writing requests; the server lives on."""

    def __init__(self, client: QdrantClient, *, after: bool) -> None:
        self.left = 0
        self.after = after
        for name in WRITES:
            setattr(client, name, self.dying(getattr(client, name)))

    def dying(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **asked: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise Killed
            answer = call(*args, **asked)
            if self.left == 0:
                raise Killed
            return answer

        return wrapped


class Preceded:
    """Runs something once before the request of a number, reading or writing; its own requests are not counted."""

    def __init__(self, client: QdrantClient, number: int, run: Callable[[], object]) -> None:
        self.left, self.run = number, run
        for name in WRITES | READS:
            setattr(client, name, self.preceded(getattr(client, name)))

    def preceded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **asked: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                self.run()
            return call(*args, **asked)

        return wrapped
