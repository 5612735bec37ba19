"""Quantities as text for messages."""

GIB = 2**30


def gib(size: int) -> str:
    """Bytes in GiB, in MiB below a tenth of a GiB."""
    if size >= 10 * GIB:
        return f"{size / GIB:.0f} GiB"
    if size >= GIB // 10:
        return f"{size / GIB:.1f} GiB"
    return f"{size / 2**20:.1f} MiB"


def gbits(mbps: int) -> str:
    """Mbit/s in Gbit/s, as printed on cables."""
    return f"{mbps / 1000:g} Gb/s"


def gigabytes(megabytes: int) -> str:
    """MB/s in GB/s, as a chip's data sheet states memory bandwidth."""
    return f"{megabytes / 1000:.0f} GB/s"
