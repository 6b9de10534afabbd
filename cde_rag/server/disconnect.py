"""Disconnects: work that ends once the client that waits for it has left."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

Result = TypeVar("Result")


async def while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """Await work, and cancel it once the client has left.

    Args:
        request: Request whose body has been read.
        work: Coroutine or future.

    Raises:
        ClientDisconnect: The client has left.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for each in (working, leaving):
            each.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)  # the work has ended before anything else does


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
