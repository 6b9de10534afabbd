"""Deprecated: names of 0.2, which are in `cde_rag.stamps`."""

from cde_rag.errors import old_names

__getattr__ = old_names(
    __name__,
    {
        "KEY": ("cde_rag.stamps", "KEY"),
        "check": ("cde_rag.stamps", "check"),
        "stamp": ("cde_rag.stamps", "stamp"),
        "stamped": ("cde_rag.stamps", "stamped"),
    },
)
