"""Certificates, keys and kubeconfigs of this Mac's control plane: created once, renewed before they expire."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509
from thunderfleet_lib.net import tls
from thunderfleet_lib.net.discovery import ca_hash

from thunderfleet_controlplane import components
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import BALANCED, INPUTS, LOCAL, HostConfig
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.files import make_folder, write
from thunderfleet_controlplane.pki import PkiError, kubeconfig, make_pki
from thunderfleet_controlplane.pki_files import ClusterPki
from thunderfleet_controlplane.setup import write_kubeconfigs

KEY_BYTES = 32


def put_certificates(config: HostConfig) -> ClusterPki:
    """Write files that are missing or expire soon. Raises InstallError."""
    layout = config.layout
    make_folder(layout.data, 0o755)
    make_folder(layout.control_plane, 0o700)
    try:
        others = (config.address,) if config.shared else ()
        pki = make_pki(layout.pki.folder, config.server_names, (LOCAL, "localhost"), etcd_names=others)
    except PkiError as error:
        raise InstallError(str(error)) from None
    if not layout.encryption.exists():
        text = json.dumps(components.encryption_config(secrets.token_bytes(KEY_BYTES)), indent=2)
        tls.write_private(layout.encryption, text.encode())
    write_kubeconfigs(config.name, layout.control_plane, pki, config.local_server)
    # The first finds an API server that works, from any Mac of the cluster; the second works without the balancer.
    for path, server in ((layout.admin_kubeconfig, BALANCED), (layout.local_kubeconfig, config.local_server)):
        text = kubeconfig("thunderfleet", server, pki.ca_pem, "kubernetes-admin", pki.admin_certificate, pki.admin_key)
        write(path, text.encode(), 0o600)
    make_folder(layout.logs, 0o755)
    return pki


def own_ca_hash(layout: HostLayout) -> str | None:
    """The hash of the CA on this Mac; None if there is none."""
    try:
        return ca_hash(x509.load_pem_x509_certificate(layout.pki.ca.read_bytes()))
    except (OSError, ValueError):
        return None


def inputs_of(config: HostConfig, programs: str) -> Mapping[str, str]:
    """For each daemon a hash of the files that it reads when it starts, and of its ``programs``."""
    found = {}
    for daemon, names in INPUTS.items():
        state = hashlib.sha256(programs.encode())
        for name in names:
            state.update(_content(config.layout.control_plane / name))
        found[daemon] = state.hexdigest()[:16]
    return found


def _content(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
