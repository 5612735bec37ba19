"""Reads the objects of a cluster's Macs and cables, and lets agents test cables."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from thunderfleet_crds.names import GROUP, VERSION
from thunderfleet_lib.kube import ApiError, Json, Kube
from thunderfleet_lib.kube.execution import run_in_pod

from thunderfleet_cli.connection import Connection
from thunderfleet_cli.doctor.checks import cabletests
from thunderfleet_cli.doctor.checks.check import Check, State
from thunderfleet_cli.doctor.checks.cluster import Objects, checks, testable

SECONDS = 30.0
TEST_SECONDS = 90.0
"""Time limit for one cable. A test takes a few seconds, and waits while the Mac measures something else."""
TESTS_SECONDS = 240.0
OURS = f"/apis/{GROUP}/{VERSION}"


async def cluster_checks(connection: Connection, test: Callable[[int], None] | None) -> list[Check]:
    """The checks of a cluster; if it is unreadable, one check with the reason. Raises LocalClusterError for a wrong kubeconfig.

    ``test``: called with the number of cables before they are tested; None: they are not tested.
    """
    async with await connection.kube() as kube:
        try:
            async with asyncio.timeout(SECONDS):
                objects = await _read(kube)
            links = testable(objects) if test is not None else []
            if test is not None and links:
                test(len(links))
                objects = replace(objects, tried=await _test(kube, links))
            return checks(objects)
        except TimeoutError:
            return [_unread(State.FAILURE, f"{kube.host} did not answer within {SECONDS:g} s")]
        except ApiError as error:
            if error.status == 404:
                return [_unread(State.FAILURE, "the cluster has no NodeProfiles: install the chart (docs/install.md)")]
            state = State.UNKNOWN if error.status in (401, 403) else State.FAILURE
            return [_unread(state, f"cannot read the cluster: {error}")]


def _unread(state: State, finding: str) -> Check:
    return Check("api-server", state, finding, subject="cluster")


async def _test(kube: Kube, links: Sequence[Mapping[str, Any]]) -> dict[str, cabletests.Tried]:
    """Lets agents test cables; tests of different Macs run at the same time."""
    try:
        pods, _ = await kube.list("/api/v1/pods", labelSelector=cabletests.AGENT_PODS)
    except ApiError as error:
        return {
            str(one["metadata"]["name"]): cabletests.Tried(problem=f"cannot list the agents' pods: {error}") for one in links
        }
    wanted, problems = cabletests.tests(links, cabletests.agents(pods))
    found = {name: cabletests.Tried(problem=why) for name, why in problems.items()}
    late = f"the tests of all cables took longer than {TESTS_SECONDS:g} s; run `thunderfleet doctor` again"
    for test in wanted:
        found |= cabletests.unanswered(test, late)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(TESTS_SECONDS):
            for together in cabletests.rounds(wanted):
                for answers in await asyncio.gather(*(_ask(kube, test) for test in together)):
                    found |= answers
    return found


async def _ask(kube: Kube, test: cabletests.Test) -> dict[str, cabletests.Tried]:
    agent = test.agent
    try:
        seconds = TEST_SECONDS * len(test.links)
        ran = await run_in_pod(kube, agent.namespace, agent.pod, agent.container, test.argv, seconds=seconds)
    except ApiError as error:
        return cabletests.unanswered(test, f"cannot run the test in the agent's pod on {agent.node}: {error}")
    return cabletests.read(test, ran.code, ran.output, ran.error)


async def _read(kube: Kube) -> Objects:
    async def items(path: str) -> list[Json]:
        return (await kube.list(path))[0]

    paths = ("/api/v1/nodes", f"{OURS}/nodeprofiles", f"{OURS}/thunderboltlinks")
    nodes, profiles, links = await asyncio.gather(*map(items, paths))
    return Objects(nodes, profiles, links)
