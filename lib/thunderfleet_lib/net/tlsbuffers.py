"""The buffer that asyncio keeps for each TLS connection, bounded by what TLS sends at once.

asyncio's own has 256 KiB, filled with zeros and so in memory from the start: for a client that waits for answers of hundreds of
servers, more than everything else that it knows of them.
"""

from asyncio.sslproto import SSLProtocol

RECORD_BYTES = 16 * 1024
"""The most that one TLS record carries (RFC 8446, 5.1). What arrives beyond it is read in the next turns of the loop."""


def small_buffers() -> None:
    """From now on each TLS connection of this process keeps a buffer of one record. Call it before the first connection."""
    # The only way to set it. A test measures what a connection takes, in case asyncio no longer looks here.
    SSLProtocol.max_size = RECORD_BYTES
