"""What the hub and a folder at a URI have in common: files with sizes and hashes, which can be read in parts."""

from pathlib import Path
from typing import BinaryIO, Protocol

from thunderfleet_lib.modelstore.manifest import FileEntry, Manifest


class Source(Protocol):
    """Where a model's files are. All methods raise HubFault."""

    @property
    def repository(self) -> str:
        """The name of the repository under which Macs keep the files."""

    @property
    def revision(self) -> str:
        """What ``commit`` resolves."""

    @property
    def token(self) -> str | None:
        """The credential of the request."""

    @property
    def endpoint(self) -> str:
        """The URL of the server, for messages."""

    def commit(self) -> str:
        """The commit of the revision."""

    def manifest(self, commit: str) -> Manifest:
        """The files of the model in a commit."""

    def fetch(self, commit: str, entry: FileEntry, file: BinaryIO, path: Path) -> None:
        """Appends what is missing of a file, which ``file`` has open at ``path``. Raises OSError of this Mac's disk too."""

    def first_bytes(self, commit: str, path: str, start: int, count: int) -> bytes:
        """A range of a file."""
