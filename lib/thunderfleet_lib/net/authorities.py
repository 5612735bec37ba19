"""Imports aiohttp without the certificates of the authorities that this machine trusts.

When aiohttp is imported, it makes two TLS contexts for requests that name none, and each reads all these certificates: a fifth
of the CPU time that the import takes. Our programs use neither to verify a server: each request over HTTPS names its own
context.
"""

import os

FILE = "SSL_CERT_FILE"
"""The environment variable that names the file with these certificates, for OpenSSL."""


def never_read() -> None:
    """Lets this process and those that it starts read no certificates of authorities; to be called before it starts threads."""
    os.environ[FILE] = os.devnull


def import_aiohttp() -> None:
    """Has no effect if aiohttp is imported already. To be called before a program starts threads.

    Contexts that are made later know the authorities. A request with aiohttp's own context may fail to verify a server.
    """
    usual = os.environ.get(FILE)
    os.environ[FILE] = os.devnull
    try:
        import aiohttp  # noqa: F401
    finally:
        if usual is None:
            del os.environ[FILE]
        else:
            os.environ[FILE] = usual
