"""The router's own certificate, read again when its files change."""

import asyncio
import logging
import ssl
from pathlib import Path

from thunderfleet_lib.net import tls

log = logging.getLogger(__name__)

CHECK_SECONDS = 30.0


class Certificate:
    """``tls.crt`` and ``tls.key`` of a folder, as a mounted Secret has them. Raises OSError when they cannot be used."""

    def __init__(self, folder: Path) -> None:
        self._files = (folder / "tls.crt", folder / "tls.key")
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded: tuple[bytes, bytes] | None = None
        self.load()

    def load(self) -> None:
        """Uses the current content of the files for new connections."""
        certificate, key = (file.read_bytes() for file in self._files)
        if (certificate, key) != self._loaded:
            # Checked first: a certificate and key that do not match must not replace the pair in use. The checked bytes are the
            # ones that are used: the files may change meanwhile, and a context would keep one half of each pair.
            tls.load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
            tls.load_pair(self.context, certificate, key)
            self._loaded = (certificate, key)

    async def keep(self) -> None:
        """Follows the files until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                self.load()
            except OSError as error:
                log.warning("cannot load the changed certificate, so the previous one is still used: %s", error)
