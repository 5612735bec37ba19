"""Requests to the hub with `huggingface_hub`, with its faults as ``HubFault``.

Endpoint and proxies come from the environment (HF_ENDPOINT, HTTPS_PROXY, …). The library retries by itself for a
short time. Longer waits are left to the operator, which shows them in the status.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.file_download import get_hf_file_metadata, http_get, xet_get
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._runtime import is_xet_available
from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.modelstore import selection
from thunderfleet_lib.modelstore.manifest import MAX_FILES, FileEntry, InvalidManifest, Manifest

from thunderfleet_runner.hub.errors import Answer, HubFault, of_status

log = logging.getLogger(__name__)

MAX_LISTED = 100_000
"""Maximum number of files of a repository, most of which do not belong to the model."""
TIMEOUT_SECONDS = 20.0
TOKEN_BYTES = 1024


def read_token(folder: Path, key: str) -> str | None:
    """The token of the mounted Secret; None if the pod mounts none. Raises HubFault."""
    if not folder.is_dir():
        return None
    try:
        with (folder / key).open("rb") as file:
            text = file.read(TOKEN_BYTES + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise HubFault(Reason.SECRET_MISSING, f"the Secret has no key {key} with a token: {type(error).__name__}") from None
    if not text or len(text) > TOKEN_BYTES or not text.isprintable() or " " in text:
        raise HubFault(Reason.SECRET_MISSING, f"the value of the key {key} in the Secret is not a token of the hub")
    return text


@dataclass(frozen=True)
class Hub:
    """The hub, for one repository. ``revision`` is a branch, tag or commit."""

    repository: str
    revision: str
    token: str | None = None

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return os.environ.get("HF_ENDPOINT") or str(constants.ENDPOINT)

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """Converts errors within the context to HubFault. An OSError of this Mac's disk is not converted."""
        try:
            yield
        except HfHubHTTPError as error:
            response = error.response
            answer = Answer(
                status=response.status_code,
                code=response.headers.get("X-Error-Code"),
                retry_after=response.headers.get("Retry-After"),
                message=(response.headers.get("X-Error-Message") or "")[:200],
            )
            with_token = self.token is not None
            raise of_status(answer, self.repository, self.revision, self.endpoint, with_token=with_token) from error
        except httpx2.HTTPError as error:
            raise HubFault(Reason.HUB_UNREACHABLE, f"cannot connect to {self.endpoint}: {_said(error)}") from error
        except (HFValidationError, InvalidManifest) as error:
            raise HubFault(Reason.FILES_REFUSED, f"{self.repository}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HubFault(
                Reason.HUB_FAILED, f"{self.endpoint} does not answer as the hub does: {type(error).__name__}: {_said(error)}"
            ) from error

    def commit(self) -> str:
        """The commit of the revision. Raises HubFault."""
        with self.faults():
            found = self._api.model_info(self.repository, revision=self.revision, timeout=TIMEOUT_SECONDS, expand=["sha"])
            if found.id is not None and found.id.casefold() != self.repository.casefold():
                raise HubFault(
                    Reason.REPOSITORY_MOVED, f"repository {self.repository} is {str(found.id)[:200]} now; use that name"
                )
            return str(found.sha)

    def manifest(self, commit: str) -> Manifest:
        """The files of the model in a commit. Raises HubFault."""
        with self.faults():
            files: list[FileEntry] = []
            listed = self._api.list_repo_tree(self.repository, revision=commit, recursive=False)
            for number, entry in enumerate(listed):
                if number >= MAX_LISTED or len(files) > MAX_FILES:
                    raise InvalidManifest(f"it has more than {MAX_FILES} files of a model, or {MAX_LISTED} in all")
                if isinstance(entry, RepoFile) and selection.belongs(entry.path):
                    files.append(_file(entry))
            why = selection.problem(entry.path for entry in files)
            if why is not None:
                raise InvalidManifest(f"commit {commit} is not a model for mlx-lm: {why}")
            return Manifest(self.repository, commit, tuple(files))

    def fetch(self, commit: str, entry: FileEntry, file: BinaryIO, path: Path) -> None:
        """Appends what is missing of a file, which ``file`` has open at ``path``. Raises HubFault, OSError."""
        with self.faults():
            url = hf_hub_url(self.repository, entry.path, revision=commit, endpoint=self.endpoint)
            about = get_hf_file_metadata(url, token=self.token or False, timeout=TIMEOUT_SECONDS, endpoint=self.endpoint)
            if about.size is not None and about.size != entry.size:
                raise HubFault(
                    Reason.WRONG_BYTES, f"{self.endpoint} has {about.size} bytes of {entry.path}, but lists {entry.size}"
                )
            # The token is for the hub alone, not for where it redirects to.
            same = httpx2.URL(about.location).host == httpx2.URL(url).host
            headers = build_hf_headers(token=(self.token or False) if same else False)
            headers["Accept-Encoding"] = "identity"
            start = file.seek(0, os.SEEK_END)
            if about.xet_file_data is not None and is_xet_available():
                own = build_hf_headers(token=self.token or False)
                xet_get(incomplete_path=path, xet_file_data=about.xet_file_data, headers=own, expected_size=entry.size)
                return
            try:
                http_get(about.location, file, resume_size=start, headers=headers, expected_size=entry.size)
            except OSError as error:
                if error.errno is not None or isinstance(error, httpx2.HTTPError):
                    raise
                # The library has found a wrong size.
                raise HubFault(Reason.WRONG_BYTES, f"{self.endpoint}: {entry.path}: {_said(error)}") from error

    def first_bytes(self, commit: str, path: str, start: int, count: int) -> bytes:
        """A range of a file. Raises HubFault."""
        with self.faults():
            url = hf_hub_url(self.repository, path, revision=commit, endpoint=self.endpoint)
            headers = build_hf_headers(token=self.token or False)
            headers |= {"Range": f"bytes={start}-{start + count - 1}", "Accept-Encoding": "identity"}
            # The client drops the token when it follows a redirect to another host.
            with httpx2.stream("GET", url, headers=headers, timeout=TIMEOUT_SECONDS, follow_redirects=True) as response:
                if response.status_code not in (200, 206):
                    code, after = response.headers.get("X-Error-Code"), response.headers.get("Retry-After")
                    answer = Answer(response.status_code, code, after)
                    raise of_status(answer, self.repository, commit, self.endpoint, with_token=self.token is not None)
                # A server without ranges sends the whole file.
                skip, found = (start if response.status_code == 200 else 0), bytearray()
                for part in response.iter_raw():
                    found += part
                    if len(found) >= skip + count:
                        break
        return bytes(found[skip : skip + count])

    @property
    def _api(self) -> HfApi:
        return HfApi(endpoint=self.endpoint, token=self.token or False)


def _file(entry: Any) -> FileEntry:
    if entry.lfs is not None:
        return FileEntry(str(entry.path), int(entry.lfs.size), sha256=str(entry.lfs.sha256))
    return FileEntry(str(entry.path), int(entry.size), git_sha1=str(entry.blob_id))


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
