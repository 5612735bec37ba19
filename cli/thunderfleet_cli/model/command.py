"""The commands ``pull``, ``list`` and ``remove``."""

import argparse
import asyncio
import json
import sys
import time
from datetime import UTC, datetime

from thunderfleet_crds import uris
from thunderfleet_crds.names import API_VERSION, MODELCACHE_PLURAL, NODEPROFILE_PLURAL
from thunderfleet_crds.weights.quantization import Quantize, kept_name
from thunderfleet_lib.kube import ApiError, Json, Kube
from thunderfleet_localcluster.errors import LocalClusterError

from thunderfleet_cli.connection import Connection, connect
from thunderfleet_cli.model import view
from thunderfleet_cli.model.patience import Patience
from thunderfleet_cli.terminal import printable

MANAGER = "thunderfleet-model"
POLL_SECONDS = 1.0
NOT_FETCHED = 3
_API = f"/apis/{API_VERSION}"


def _connect(arguments: argparse.Namespace) -> Connection:
    return connect(arguments.kubeconfig, arguments.context, arguments.namespace)


def _folder(namespace: str) -> str:
    return f"{_API}/namespaces/{namespace}/{MODELCACHE_PLURAL}"


def _refused(error: ApiError) -> LocalClusterError:
    if error.status == 404:
        return LocalClusterError("the cluster does not have the kind ModelCache: upgrade the chart (docs/install.md)")
    if error.status == 422:
        return LocalClusterError(error.message, usage=True)
    return LocalClusterError(f"cannot use ModelCaches: {error}")


def pull(arguments: argparse.Namespace) -> int:
    """``thunderfleet model pull``. Exit code 3: the model was not fetched. Raises LocalClusterError."""
    quantize = view.quantization(arguments.quantize, arguments.group_size)
    uri = view.is_uri(arguments.model)
    name = view.name_for(uris.served_name(arguments.model) if uri else kept_name(arguments.model, quantize))
    if uri:
        _check_uri(arguments)
    elif arguments.sha256:
        raise LocalClusterError("--sha256 needs a URI, such as https://models.example.com/qwen3-8b-4bit/", usage=True)
    if arguments.group_size and quantize is None:
        raise LocalClusterError("--group-size needs --quantize", usage=True)
    if not name or arguments.copies < 0:
        raise LocalClusterError(
            f"MODEL must be organization/name or a URI, and --copies at least 0: {arguments.model}", usage=True
        )
    return asyncio.run(_pull(arguments, _connect(arguments), name, quantize))


def _check_uri(arguments: argparse.Namespace) -> None:
    if arguments.quantize or arguments.token_secret or arguments.revision != "main":
        raise LocalClusterError("--revision, --quantize and --token-secret are for repositories of the hub", usage=True)
    try:
        uris.check_uri(arguments.model)
        uris.check_sha256(arguments.sha256 or "")
    except ValueError as error:
        raise LocalClusterError(str(error), usage=True) from None


async def _pull(arguments: argparse.Namespace, connection: Connection, name: str, quantize: Quantize | None) -> int:
    body = view.manifest(
        connection.namespace,
        name,
        arguments.model,
        arguments.revision,
        arguments.copies,
        arguments.token_secret,
        quantize,
        arguments.sha256,
    )
    path = f"{_folder(connection.namespace)}/{name}"
    async with await connection.kube() as kube:
        try:
            found = await kube.get_or_none(path)
            if found is not None and view.source(found["spec"]) != arguments.model:
                raise LocalClusterError(f"ModelCache {name} is for {view.source(found['spec'])}: remove it first", usage=True)
            await kube.apply(path, body, MANAGER)
            say(f"ModelCache {name} in namespace {connection.namespace}")
            return 0 if arguments.no_wait else await _follow(kube, path, arguments.timeout, fetch=arguments.copies > 0)
        except ApiError as error:
            raise _refused(error) from error


async def _follow(kube: Kube, path: str, seconds: float, *, fetch: bool) -> int:
    limit, said, patience = time.monotonic() + seconds, "", Patience(time.monotonic())
    while True:
        cache = await kube.get_or_none(path)
        if cache is None:
            raise LocalClusterError(f"ModelCache {path.rpartition('/')[2]} has been deleted")
        if view.is_fetched(cache):
            macs = ", ".join(copy["node"] for copy in cache["status"]["macs"])
            say(f"{view.source(cache['spec'])} is on {macs}")
            return 0
        if not fetch and (found := view.condition(cache, "Resolved")).get("status") == "True":
            say(found["message"])
            return 0
        waits, now = view.waits_for(cache), time.monotonic()
        if waits != said:
            say(f"  … {waits}")
            said = waits
        over = f"the limit of {seconds:g} s (--timeout) has passed" if now > limit else patience.over(cache, now)
        if over is not None:
            say(f"not fetched, {over}: {waits}")
            say("the ModelCache still exists and the operator tries again; `thunderfleet model list` shows its status")
            return NOT_FETCHED
        await asyncio.sleep(POLL_SECONDS)


def list_models(arguments: argparse.Namespace) -> int:
    """``thunderfleet model list``. Raises LocalClusterError."""
    return asyncio.run(_list(arguments, _connect(arguments)))


async def _list(arguments: argparse.Namespace, connection: Connection) -> int:
    path = f"{_API}/{MODELCACHE_PLURAL}" if arguments.all_namespaces else _folder(connection.namespace)
    async with await connection.kube() as kube:
        try:
            caches, _ = await kube.list(path)
            every = caches if arguments.all_namespaces else (await kube.list(f"{_API}/{MODELCACHE_PLURAL}"))[0]
            profiles, _ = await kube.list(f"{_API}/{NODEPROFILE_PLURAL}")
        except ApiError as error:
            raise _refused(error) from error
    if arguments.output == "json":
        json.dump(caches, sys.stdout, indent=1)
        print()
    else:
        print(view.table([*map(view.row, caches), *view.unreferenced(profiles, every, datetime.now(UTC))]))
    return 0


def remove(arguments: argparse.Namespace) -> int:
    """``thunderfleet model remove``. Raises LocalClusterError."""
    return asyncio.run(_remove(arguments, _connect(arguments)))


async def _remove(arguments: argparse.Namespace, connection: Connection) -> int:
    folder = _folder(connection.namespace)
    async with await connection.kube() as kube:
        try:
            caches, _ = await kube.list(folder)
            found = [one for one in caches if arguments.model in (one["metadata"]["name"], view.source(one["spec"]))]
            if not found:
                raise LocalClusterError(
                    f"namespace {connection.namespace} has no ModelCache of {arguments.model}; `thunderfleet model list -A` "
                    "lists those of all namespaces"
                )
            for cache in found:
                _check_owner(cache)
            for cache in found:
                await kube.delete(f"{folder}/{cache['metadata']['name']}", uid=cache["metadata"]["uid"])
                say(f"deleted ModelCache {cache['metadata']['name']}; Macs remove the files when they need the disk space")
        except ApiError as error:
            raise _refused(error) from error
    return 0


def _check_owner(cache: Json) -> None:
    owner = next((one for one in cache["metadata"].get("ownerReferences") or [] if one.get("controller")), None)
    if owner is not None:
        raise LocalClusterError(
            f"ModelDeployment {owner['name']} uses ModelCache {cache['metadata']['name']}; delete the ModelDeployment first",
            usage=True,
        )


def say(text: str) -> None:
    """Progress on standard error; tables go to standard output."""
    print(printable(text), file=sys.stderr, flush=True)
