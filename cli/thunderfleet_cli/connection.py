"""The cluster that a command uses, and how its endpoints are reached."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from kubernetes.aio.config.config_exception import ConfigException
from thunderfleet_lib.host import yamltext
from thunderfleet_lib.host.privilege import ROOT, distrust
from thunderfleet_lib.kube import Kube
from thunderfleet_lib.kube.kubeconfig import contexts
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.paths import users_kubeconfig


@dataclass(frozen=True)
class Connection:
    """A cluster. ``proxy``: the URL of the HTTP proxy to a local cluster's endpoints; None for a direct connection."""

    kubeconfig: Path
    context: str | None
    namespace: str
    proxy: str | None

    async def kube(self) -> Kube:
        """A new client. Raises LocalClusterError."""
        try:
            self._refuse_plugins()
            return await Kube.from_kubeconfig(self.kubeconfig, self.context)
        except (ConfigException, OSError, ValueError) as error:
            raise LocalClusterError(f"cannot use kubeconfig {self.kubeconfig}: {error}", usage=True) from error

    def _refuse_plugins(self) -> None:
        """Raises LocalClusterError if this user is root and other users could make root run programs by this kubeconfig."""
        if os.geteuid() != ROOT:
            return
        # As kubectl, the client accepts several files in one variable.
        paths = [Path(one) for one in str(self.kubeconfig).split(os.pathsep)]
        if (reason := distrust(paths)) is not None and any(_has_plugins(path) for path in paths):
            raise LocalClusterError(
                f"{self.kubeconfig} names a credential plugin, which root does not run when others can change the file "
                f"({reason}): run this without sudo, or use a kubeconfig without `exec`",
                usage=True,
            )


def _has_plugins(path: Path) -> bool:
    """Whether a kubeconfig names programs to run."""
    content = yamltext.load(path.read_text(encoding="utf-8"))
    users = content.get("users") if isinstance(content, dict) else None
    return any(plugin in str(users) for plugin in ("'exec'", "'auth-provider'"))


def connect(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Connection:
    """The cluster of ``kubeconfig``, else of $KUBECONFIG, of ~/.kube/config, or the local cluster. Raises LocalClusterError."""
    path = kubeconfig or users_kubeconfig() or _local()
    found = namespace or _namespace(path, context)
    return Connection(path, context, found, _proxy(path))


def _local() -> Path:
    # Most commands have a kubeconfig.
    from thunderfleet_localcluster.client.cluster import Cluster

    try:
        return Cluster.attach().kubeconfig
    except LocalClusterError as error:
        raise LocalClusterError(
            f"no cluster: there is no $KUBECONFIG and no ~/.kube/config, and {error}", usage=True
        ) from error


def _namespace(path: Path, context: str | None) -> str:
    """The namespace of the context, as kubectl uses it."""
    try:
        known, active = contexts(path)
    except (ConfigException, OSError) as error:
        raise LocalClusterError(f"cannot use kubeconfig {path}: {error}", usage=True) from error
    chosen = active if context is None else next((one for one in known if one.get("name") == context), None)
    if chosen is None:
        names = ", ".join(str(one.get("name")) for one in known)
        raise LocalClusterError(f"{path} has no context {context!r}; contexts: {names}", usage=True)
    return str((chosen.get("context") or {}).get("namespace") or "default")


def _proxy(path: Path) -> str | None:
    """Macs of a local cluster have a network of their own, which only its proxy reaches."""
    try:
        state = json.loads((path.parent / "cluster.json").read_text())
    except (OSError, ValueError):
        return None
    return str(state["proxy"]) if isinstance(state, dict) and state.get("kubeconfig") == str(path.resolve()) else None
