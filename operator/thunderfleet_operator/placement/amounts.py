"""Amounts as owners of Macs read them."""

GIB = 2**30


def gib(size: int) -> str:
    """Bytes as owners of Macs read them."""
    if size >= 10 * GIB:
        return f"{size / GIB:.0f} GiB"
    if size >= GIB // 10:
        return f"{size / GIB:.1f} GiB"
    return f"{size / 2**20:.1f} MiB"


def gbits(mbps: int) -> str:
    """Mbit/s as the cable's box says it."""
    return f"{mbps / 1000:g} Gb/s"
