"""Memory that engines and the allocator of C keep, in a process that runs for long: a server or a worker."""

import ctypes
import os
import platform
from typing import Final

_PRIMITIVES: Final = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}  # of torch; its default, 1 024, takes half a gigabyte
_MMAP_THRESHOLD: Final = -3  # source: malloc.h of glibc
_LARGE: Final = 2**18  # bytes of a buffer that goes back to the system when it is freed


def bound_native_memory() -> None:
    """Bound the memory that stays after batches of many shapes; settings of the environment take precedence.

    For a process of this library's own, before its first model is loaded. By itself glibc raises the size of buffers
    that it gives back, up to 32 MiB, and keeps the others in pieces. OpenVINO's own cache is bounded by its engine, and
    ONNX Runtime keeps none by shape.
    """
    for name, value in _PRIMITIVES.items():
        os.environ.setdefault(name, value)
    if platform.libc_ver()[0] == "glibc" and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)
