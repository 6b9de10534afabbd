"""The route class of all JSON bodies."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from cde_rag._validation import unique_keys


class JsonRoute(APIRoute):
    """Route that refuses a body with a key twice, of which the last one would win: it may be another filter."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with a request that parses its body so."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(_UniqueKeysRequest(request.scope, request.receive))

        return handler


class _UniqueKeysRequest(Request):
    async def json(self) -> Any:
        return json.loads(await self.body(), object_pairs_hook=unique_keys)
