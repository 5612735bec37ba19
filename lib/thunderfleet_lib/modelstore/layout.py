"""Where models are below the store's folder.

The folder is a Hugging Face cache, which agents and other programs read: ``models--OWNER--NAME/`` with ``blobs/HASH``,
``snapshots/COMMIT/`` (symbolic links to blobs) and ``refs/REVISION``. What only Thunderfleet needs is in ``.thunderfleet/``,
which scans for models skip.
"""

from dataclasses import dataclass
from pathlib import Path

from thunderfleet_lib.modelstore.manifest import check_repository, is_blob

OWN = ".thunderfleet"
REPOSITORY = "models--"
"""How the folders of repositories begin."""
INCOMPLETE = ".incomplete"
RESTRICTED = ".token"
TOKEN_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below ``root``. Raises ValueError for names that cannot be part of a path."""

    root: Path

    def repository(self, repository: str) -> Path:
        """The folder of a repository."""
        check_repository(repository)
        return self.root / (REPOSITORY + repository.replace("/", "--"))

    def blobs(self, repository: str) -> Path:
        """The folder of its blobs."""
        return self.repository(repository) / "blobs"

    def blob(self, repository: str, name: str) -> Path:
        """A blob. A file of this name has its hash: it was checked before it got the name."""
        if not is_blob(name):
            raise ValueError(f"{name[:80]!r} is not a hash")
        return self.blobs(repository) / name

    def incomplete(self, repository: str, name: str) -> Path:
        """A blob that arrives."""
        blob = self.blob(repository, name)
        return blob.with_name(blob.name + INCOMPLETE)

    def snapshot(self, repository: str, commit: str) -> Path:
        """The folder of a commit. It exists only when all of its files are there."""
        return self.repository(repository) / "snapshots" / _token(commit)

    def reference(self, repository: str, revision: str) -> Path:
        """The file that contains the commit of a revision."""
        return self.repository(repository) / "refs" / _token(revision)

    @property
    def manifests(self) -> Path:
        """The folder of manifests. A model without one here is not the store's, but a user's."""
        return self.root / OWN / "manifests"

    def manifest(self, digest: str) -> Path:
        """A manifest by its digest."""
        if not is_blob(digest):
            raise ValueError(f"{digest[:80]!r} is not a hash")
        return self.manifests / f"{digest}.json"

    def restricted(self, digest: str) -> Path:
        """The file that records that the hub has listed a manifest's files for a token."""
        return self.manifest(digest).with_suffix(RESTRICTED)

    def part(self, digest: str) -> Path:
        """The folder with a part of a model: with links to some of its files, and ``parts.PART_FILE``."""
        if not is_blob(digest):
            raise ValueError(f"{digest[:80]!r} is not a hash")
        return self.root / OWN / "parts" / digest

    @property
    def staging(self) -> Path:
        """The folder that has one folder for each download."""
        return self.root / OWN / "staging"

    def staged(self, download: str) -> Path:
        """The folder that the pod of a download writes to. Its content is not trusted."""
        return self.staging / _token(download)

    @property
    def locks(self) -> Path:
        """The folder of the locks of blobs."""
        return self.root / OWN / "locks"

    @property
    def temporary(self) -> Path:
        """Folders that are about to be renamed, or to be removed."""
        return self.root / OWN / "tmp"


def _token(name: str) -> str:
    plain = all(sign.isascii() and (sign.isalnum() or sign in "._-") for sign in name)
    if not plain or not 0 < len(name) <= TOKEN_LENGTH or name.startswith("."):
        raise ValueError(f"{name[:80]!r} cannot be the name of a file here")
    return name
