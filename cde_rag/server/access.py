"""Access to a server: API keys, and addresses that may be bound without one."""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from cde_rag.errors import CDEError
from cde_rag.server.error_responses import RequestError


class ApiKeys:
    """API keys, compared in constant time. Only their digests are kept.

    Args:
        keys: Keys to what the server serves to all; without any key, every request passes.
        tenants: Names of tenants by their keys.

    Raises:
        CDEError: A key is blank, or one key is given twice for different tenants.
    """

    def __init__(self, keys: Iterable[str] = (), tenants: Mapping[str, str] | None = None) -> None:
        given = [
            *((key.strip(), None) for key in keys),
            *((key.strip(), name) for key, name in (tenants or {}).items()),
        ]
        if not all(key for key, _ in given):
            raise CDEError("An API key is blank. Leave it out, or make one with: openssl rand -hex 32")
        self._owners = {_digest(key): name for key, name in given}
        if any(self._owners[_digest(key)] != name for key, name in given):
            raise CDEError("An API key is given twice, and not for the same tenant. Make one for each.")

    def __len__(self) -> int:
        return len(self._owners)

    def check(self, authorization: str) -> str | None:
        """Check the value of a request's header `Authorization`.

        Returns:
            Name of the key's tenant; None of a key to what is served to all, and of a server without keys.

        Raises:
            RequestError: 401, there is no key in it, or another one.
        """
        if not self._owners:
            return None
        scheme, _, key = authorization.partition(" ")
        found = _digest(key.strip())
        same = [known for known in self._owners if hmac.compare_digest(found, known)]  # compares all: constant time
        if scheme.lower() != "bearer" or not same:
            message = "Expected an API key of this server in the header 'Authorization: Bearer KEY'."
            headers = {"WWW-Authenticate": "Bearer"}
            raise RequestError(401, message, code="invalid_api_key", headers=headers)
        return self._owners[same[0]]


def _is_loopback(host: str) -> bool:
    """Return True for an address that only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, keys: ApiKeys) -> None:
    """Refuse to serve other machines without a key.

    Raises:
        CDEError: The address is public, and there is no key.
    """
    if not keys and not _is_loopback(host):
        raise CDEError(
            f"{host} can be reached by other machines, and there is no API key. Give one (--api-key-file FILE, or the "
            "environment variable CDE_RAG_API_KEY), or serve this machine alone: --host 127.0.0.1"
        )


def check_host(header: str, keys: ApiKeys, allowed: Sequence[str] = ()) -> None:
    """Refuse requests to another name of this machine where no key protects it.

    A page in a browser could otherwise reach a server on loopback under a name of its own (DNS rebinding).

    Args:
        header: Value of the header `Host`.
        keys: Keys of the server; with any, all hosts pass.
        allowed: Further names.

    Raises:
        RequestError: 421, the host is not loopback.
    """
    if keys:
        return
    try:
        host = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        host = ""
    if not _is_loopback(host) and host not in allowed:
        raise RequestError(421, "A server without API key answers requests to localhost only.", code="wrong_host")


def check_origin(origin: str, host: str) -> None:
    """Refuse requests that a page of another site sends, which needs no permission for a bare POST.

    Args:
        origin: Value of the header `Origin`; empty if there is none.
        host: Value of the header `Host`.

    Raises:
        RequestError: 403, the page is another site's.
    """
    if origin and origin.partition("://")[2] != host:
        raise RequestError(403, "Pages of other sites may not use this server.", code="wrong_origin")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
