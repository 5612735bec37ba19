"""The start of a cluster: its steps, in order."""

import asyncio

from thunderfleet_localcluster.supervisor.local_cluster import LocalCluster
from thunderfleet_localcluster.supervisor.report import Report


async def start(cluster: LocalCluster, report: Report) -> None:
    """Start everything; returns when every Node is Ready, or every machine if a Mac gets the control plane.

    Raises LocalClusterError.
    """
    if cluster.spec.control_plane_mac is None:
        await _start_with_control_plane(cluster, report)
    else:
        async with report.step(f"{len(cluster.plan.machines)} machines"):
            await asyncio.get_running_loop().run_in_executor(None, cluster.pool.write_files)
            await cluster.pool.switch_on_all()
    cluster.write_state()
    cluster.starting = False


async def _start_with_control_plane(cluster: LocalCluster, report: Report) -> None:
    control_plane = cluster.control_plane
    async with report.step("API server"):
        control_plane.start("etcd")
        control_plane.start("kube-apiserver")
        # Machines need no API server, so they are created meanwhile.
        files = asyncio.get_running_loop().run_in_executor(None, cluster.pool.write_files)
        machines = asyncio.create_task(cluster.pool.switch_on_all())
        try:
            await control_plane.or_failure(control_plane.api_ready())
        finally:
            await files
            await machines
    async with report.step("controllers and scheduler"):
        control_plane.start("kube-controller-manager")
        control_plane.start("kube-scheduler")
        await control_plane.or_failure(control_plane.make_joinable())
    if cluster.spec.kubelet is not None:
        async with report.step(f"{len(cluster.pool.machines)} machines join"):
            await control_plane.or_failure(cluster.joining.join_all())
    async with report.step("default service account"):
        await control_plane.or_failure(control_plane.default_account())
    control_plane.starting = False
