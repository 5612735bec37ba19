"""Quantities as text for messages."""

GIB = 2**30


def gib(size: int) -> str:
    """Bytes in GiB, in MiB below a tenth of a GiB."""
    if size >= 10 * GIB:
        return f"{size / GIB:.0f} GiB"
    if size >= GIB // 10:
        return f"{size / GIB:.1f} GiB"
    return f"{size / 2**20:.1f} MiB"


def distinct_gib(*sizes: int) -> tuple[str, ...]:
    """Bytes as by ``gib``, with more decimals where different sizes would read the same."""
    texts = tuple(map(gib, sizes))
    decimals = 0
    while len(set(texts)) < len(set(sizes)) and decimals < 3:
        decimals += 1
        texts = tuple(f"{size / GIB:.{decimals}f} GiB" for size in sizes)
    return texts if len(set(texts)) == len(set(sizes)) else tuple(f"{size} bytes" for size in sizes)


def gbits(mbps: int) -> str:
    """Mb/s in Gb/s, as printed on cables."""
    return f"{mbps / 1000:g} Gb/s"


def gigabytes(megabytes: int) -> str:
    """MB/s in GB/s, as a chip's data sheet states memory bandwidth."""
    return f"{megabytes / 1000:.0f} GB/s"


def one_line(text: str) -> str:
    """Text that others wrote, for messages: without line breaks and characters that a terminal would carry out."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)
