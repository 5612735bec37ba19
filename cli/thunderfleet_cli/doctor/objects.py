"""Reads what a cluster says about its Macs and cables."""

import asyncio

from thunderfleet_crds.names import GROUP, VERSION
from thunderfleet_lib.kube import ApiError, Json, Kube

from thunderfleet_cli.connection import Connection
from thunderfleet_cli.doctor.check import Check, State
from thunderfleet_cli.doctor.cluster import Objects, checks

SECONDS = 30.0
OURS = f"/apis/{GROUP}/{VERSION}"


async def cluster_checks(connection: Connection) -> list[Check]:
    """The checks of a cluster; one that says why, if it cannot be read. Raises LocalClusterError for a wrong kubeconfig."""
    async with await connection.kube() as kube:
        try:
            async with asyncio.timeout(SECONDS):
                return checks(await _read(kube))
        except TimeoutError:
            return [_unread(State.FAILURE, f"{kube.host} did not answer within {SECONDS:g} s")]
        except ApiError as error:
            if error.status == 404:
                return [_unread(State.FAILURE, "the cluster has no NodeProfiles: install the chart (docs/install.md)")]
            state = State.UNKNOWN if error.status in (401, 403) else State.FAILURE
            return [_unread(state, f"cannot read the cluster: {error}")]


def _unread(state: State, finding: str) -> Check:
    return Check("api-server", state, finding, subject="cluster")


async def _read(kube: Kube) -> Objects:
    async def items(path: str) -> list[Json]:
        return (await kube.list(path))[0]

    paths = ("/api/v1/nodes", f"{OURS}/nodeprofiles", f"{OURS}/thunderboltlinks")
    nodes, profiles, links = await asyncio.gather(*map(items, paths))
    return Objects(nodes, profiles, links)
