"""The arguments of the command line for joining: the API server, the token and the hash of the CA."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from thunderfleet_kubelet.bootstrap.errors import UsageError

TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
HASH = re.compile(r"sha256:[0-9a-f]{64}")
TOKEN_FILE_LIMIT = 1024


@dataclass(frozen=True)
class Server:
    """The address of the API server."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The base URL."""
        return f"https://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parse_server(text: str) -> Server:
    """Parses ``https://HOST:PORT``. Raises UsageError."""
    try:
        parts = urlsplit(text)
        port = parts.port or 6443
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme != "https" or not parts.hostname or parts.path.strip("/") or parts.query:
        raise UsageError(f"--server {text}: must be https://HOST:PORT, such as https://192.168.64.1:6443")
    return Server(parts.hostname, port)


def read_token(file: Path) -> str:
    """The token in a file. Raises UsageError."""
    try:
        with file.open() as stream:
            return stream.read(TOKEN_FILE_LIMIT).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: cannot be read: {error}") from None


def check_token(text: str) -> str:
    """Returns a well-formed token. Raises UsageError, without the token in the message because it is secret."""
    if not TOKEN.fullmatch(text):
        raise UsageError(
            "--token: must be 6 lower-case letters or digits, a dot, and 16 more, as `thunderfleet local token` or kubeadm "
            "prints it"
        )
    return text


def check_hash(text: str) -> str:
    """Returns a well-formed hash. Raises UsageError."""
    if not HASH.fullmatch(text):
        raise UsageError(
            f"--ca-hash {text}: must be sha256: and 64 lower-case hexadecimal digits, as printed by `thunderfleet local token` "
            "or kubeadm"
        )
    return text
