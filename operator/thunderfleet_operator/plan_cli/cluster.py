"""Reads the fleet from a cluster instead of a file."""

import asyncio
import os
from pathlib import Path

from aiohttp import ClientError
from kubernetes.aio.config.config_exception import ConfigException
from thunderfleet_lib.kube import ApiError, Json, Kube

from thunderfleet_operator.plan_cli.read import KINDS, BadInput, read_fleet
from thunderfleet_operator.watch.cache import Cache

SECONDS = 60.0


async def _objects(kubeconfig: Path, context: str) -> list[Json]:
    found = []
    async with asyncio.timeout(SECONDS), await Kube.from_kubeconfig(kubeconfig, context) as kube:
        for kind, (collection, _) in KINDS.items():
            items, _version = await kube.list(collection.path, **collection.query)
            found += [{**item, "kind": kind} for item in items]
    return found


def read_cluster(context: str) -> Cache:
    """The objects that the operator reads, from the cluster of a context. Raises ``BadInput``."""
    kubeconfig = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    try:
        objects = asyncio.run(_objects(kubeconfig, context))
    except TimeoutError:
        raise BadInput(f"--context {context}: the cluster did not answer within {SECONDS:g} s") from None
    except (ApiError, ConfigException, ClientError, OSError) as error:
        raise BadInput(f"--context {context}: {error}") from None
    return read_fleet(Path(f"context {context}"), objects)
