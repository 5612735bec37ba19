"""The commands ``resolve`` and ``download``. Their result is the pod's termination message."""

import argparse
import contextlib
import errno
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from thunderfleet_crds.exchange.group import TERMINATION_LOG
from thunderfleet_crds.fetching import TOKEN_KEY, FetchResult
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.weights.parts import numbers
from thunderfleet_crds.weights.quantization import Quantize
from thunderfleet_lib.host.sandbox import mounted

if TYPE_CHECKING:
    from thunderfleet_lib.modelstore.manifest import Manifest

    from thunderfleet_runner.hub.client import Hub
    from thunderfleet_runner.hub.source import Source

log = logging.getLogger(__name__)

ENVIRONMENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_OFFLINE": "0",
}
"""Read by huggingface_hub when it is imported."""


def main(arguments: argparse.Namespace) -> int:
    """Runs a command. Returns the exit code: 0 success, 1 failure."""
    os.environ.update(ENVIRONMENT)
    commands = {"resolve": _resolve, "download": _download, "quantize": _quantize}
    result = _guarded(lambda: commands[arguments.command](arguments))
    try:
        text = result.text
    except ValueError as error:
        result = FetchResult(
            Reason.FILES_REFUSED, f"the sizes of {arguments.repository or arguments.uri} cannot be reported: {error}"
        )
        text = result.text
    _write(text)
    failed = result.reason not in (Reason.RESOLVED, Reason.FETCHED, Reason.QUANTIZED)
    log.log(logging.ERROR if failed else logging.INFO, "%s %s", result.reason, result.message)
    return 1 if failed else 0


def _guarded(run: Callable[[], FetchResult]) -> FetchResult:
    from thunderfleet_runner.hub.errors import HubFault

    try:
        return run()
    except HubFault as fault:
        return FetchResult(fault.reason, fault.message, fault.retry_seconds)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return FetchResult(Reason.DISK_FULL if full else Reason.DOWNLOAD_FAILED, " ".join(str(error).split()))
    except Exception as error:
        log.exception("unexpected")
        return FetchResult(Reason.DOWNLOAD_FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _resolve(arguments: argparse.Namespace) -> FetchResult:
    from thunderfleet_runner.hub.resolve import resolve

    hub = _source(arguments, arguments.revision)
    quantize = _how(arguments)
    with tempfile.TemporaryDirectory(prefix="thunderfleet-resolve-") as folder:
        found = resolve(hub, Path(folder))
        if quantize is None:
            return found
        from thunderfleet_runner.hub.quantize import with_plan

        return with_plan(found, quantize, Path(folder), arguments.repository)


def _source(arguments: argparse.Namespace, revision: str) -> "Source":
    """What the options name. Raises HubFault."""
    if arguments.repository is None:
        from thunderfleet_runner.hub.folder import Folder

        return Folder(arguments.uri, arguments.sha256 or "")
    return _hub(arguments, revision)


def _hub(arguments: argparse.Namespace, revision: str) -> "Hub":
    from thunderfleet_runner.hub.client import Hub, read_token

    return Hub(arguments.repository, revision, read_token(arguments.token_folder, TOKEN_KEY))


def _how(arguments: argparse.Namespace) -> Quantize | None:
    if arguments.bits is None:
        return None
    return Quantize(bits=arguments.bits, group_size=arguments.group_size or Quantize().group_size)


def _quantize(arguments: argparse.Namespace) -> FetchResult:
    from thunderfleet_lib.modelstore.store import Store

    from thunderfleet_runner.hub.quantize import Quantization

    hub = _hub(arguments, arguments.commit)
    manifest = _listed(hub, arguments)
    quantize = _how(arguments) or Quantize()
    return Quantization(hub, manifest, quantize, Store(arguments.store), arguments.staging).run()


def _download(arguments: argparse.Namespace) -> FetchResult:
    from thunderfleet_lib.modelstore.store import Store

    from thunderfleet_runner.hub.download import Download

    source = _source(arguments, arguments.commit)
    manifest = _listed(source, arguments)
    return Download(source, manifest, Store(arguments.store), arguments.staging, files=_files(arguments.files)).run()


def _listed(source: "Source", arguments: argparse.Namespace) -> "Manifest":
    """The files of the commit. Raises HubFault if they are not those of the manifest."""
    from thunderfleet_runner.hub.errors import HubFault

    manifest = source.manifest(arguments.commit)
    if manifest.digest != arguments.manifest:
        raise HubFault(
            Reason.HUB_FAILED, f"{source.endpoint} lists other files for commit {arguments.commit} than when it was resolved"
        )
    return manifest


def _files(text: str | None) -> frozenset[int] | None:
    return None if text is None else numbers(text)


def _write(text: str) -> None:
    """Writes the pod's termination message; outside a pod there is no such file, and none is created."""
    path = mounted(TERMINATION_LOG)
    with contextlib.suppress(OSError):
        if path.is_file():
            path.write_text(text, encoding="utf-8")
            return
    print(text)
