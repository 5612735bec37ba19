"""The buffer that asyncio keeps for each TLS connection, bounded by what TLS sends at once.

asyncio's own buffer has 256 KiB and is filled with zeros, so it is in memory from the start. For a client with connections to
hundreds of servers, this would be most of its memory.
"""

from asyncio.sslproto import SSLProtocol

RECORD_BYTES = 16 * 1024
"""The most that one TLS record carries (RFC 8446, 5.1). What arrives beyond it is read in the next turns of the loop."""


def small_buffers() -> None:
    """Limits the buffer of each later TLS connection of this process to one record. Call it before the first connection."""
    # There is no other way to set it. A test measures the memory of a connection, in case asyncio no longer uses this value.
    SSLProtocol.max_size = RECORD_BYTES
