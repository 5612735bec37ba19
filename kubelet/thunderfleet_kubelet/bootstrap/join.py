"""Joins a cluster: from a bootstrap token and the hash of the cluster's CA to a client certificate.

The order matters: the CA is verified by its hash before the token is sent; whether the Node's name is free can only be read
with the certificate, because a token may not read Nodes; and only after that is the identity written.
"""

from pathlib import Path

from thunderfleet_lib.csr.names import CLIENT_SIGNER
from thunderfleet_lib.host.privatefiles import write_private
from thunderfleet_lib.kube import ApiError, Kube

from thunderfleet_kubelet.bootstrap.arguments import Server
from thunderfleet_kubelet.bootstrap.certificates import obtain
from thunderfleet_kubelet.bootstrap.discovery import fetch_ca
from thunderfleet_kubelet.bootstrap.errors import JoinError
from thunderfleet_kubelet.bootstrap.identity import NodeIdentity, identity_folder, save_identity

CERTIFICATE_SECONDS = 120.0


def _refusal(server: Server, error: ApiError, what: str) -> JoinError:
    if error.status == 401:
        return JoinError(
            f"{server.url} rejected the token: it has expired or is mistyped; get a new one from `thunderfleet local token` on "
            "a local cluster, from `kubeadm token create` on others; for `thunderfleet join`, `sudo thunderfleet init` on a "
            "Mac with a control plane prints a new line"
        )
    if error.status == 403:
        return JoinError(
            f"{server.url}: the token does not allow {what}; bind ClusterRole system:node-bootstrapper to group "
            f"system:bootstrappers ({error.message})"
        )
    return JoinError(f"{server.url}: {what}: {error}")


async def _check_name(kube: Kube, node_name: str) -> None:
    current = await kube.get_or_none(f"/api/v1/nodes/{node_name}")
    if current is None:
        return
    lease = await kube.get_or_none(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node_name}")
    renewed = ((lease or {}).get("spec") or {}).get("renewTime")
    seen = f"Lease last renewed at {renewed}" if renewed else "without a Lease"
    raise JoinError(
        f"a Node named {node_name} already exists ({seen}); set another nodeName in the file of --config, or use --replace "
        "if this machine replaces that one and the kubelet there has stopped; for `thunderfleet join`, use another --name, or "
        f"delete that Node (kubectl delete node {node_name})"
    )


async def join(
    *,
    server: Server,
    token: str,
    wanted_hash: str,
    root: Path,
    node_name: str,
    config_file: Path | None,
    replace: bool,
    seconds: int,
    limit: float = CERTIFICATE_SECONDS,
) -> NodeIdentity:
    """Joins and writes the identity to ``root``. Raises JoinError or CertificateError; then nothing is written."""
    ca = await fetch_ca(server, wanted_hash)
    identity_folder(root).mkdir(mode=0o700, parents=True, exist_ok=True)
    trusted = identity_folder(root) / "joining-ca.crt"
    candidate = identity_folder(root) / "joining.pem"
    write_private(trusted, ca)
    try:
        async with Kube.with_files(server.url, trusted, token=token) as kube:
            try:
                again = "then run the same command again, which sends a new request"
                pair = await obtain(kube, node_name, CLIENT_SIGNER, seconds, limit=limit, again=again)
            except ApiError as error:
                raise _refusal(server, error, "certificate requests") from None
        if not replace:
            write_private(candidate, pair.pem)
            async with Kube.with_files(server.url, trusted, certificate=candidate, key=candidate) as kube:
                try:
                    await _check_name(kube, node_name)
                except ApiError as error:
                    raise JoinError(f"{server.url}: cannot check whether Node {node_name} exists: {error}") from None
        return save_identity(root, server, node_name, config_file, ca, pair)
    finally:
        trusted.unlink(missing_ok=True)
        candidate.unlink(missing_ok=True)
