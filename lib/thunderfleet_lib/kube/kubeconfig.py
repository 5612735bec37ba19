"""Reads kubeconfig files with the official client, which takes long to import."""

from pathlib import Path

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.kube_config import list_kube_config_contexts, load_kube_config

from thunderfleet_lib.kube import plugin
from thunderfleet_lib.kube.names import Json
from thunderfleet_lib.kube.transport import Credentials, CredentialsError


async def credentials(path: Path, context: str | None) -> Credentials:
    """Those of the current (or named) context. Raises CredentialsError, OSError and what a malformed file causes."""
    found = Configuration()
    plugin.use()
    try:
        await load_kube_config(config_file=str(path), context=context, client_configuration=found, persist_config=False)
    except ConfigException as error:
        raise CredentialsError(str(error)) from error
    return Credentials(
        server=str(found.host).rstrip("/"),
        ca=found.ssl_ca_cert or None,
        insecure=not found.verify_ssl,
        authorization=await found.get_api_key_with_prefix("BearerToken", alias="authorization") or None,
        certificate=found.cert_file or None,
        key=found.key_file or None,
        tls_name=found.tls_server_name or None,
        proxy=found.proxy or None,
    )


def contexts(path: Path) -> tuple[list[Json], Json]:
    """All contexts of the file, and the current one. Raises CredentialsError, OSError."""
    try:
        found, active = list_kube_config_contexts(config_file=str(path))
    except ConfigException as error:
        raise CredentialsError(str(error)) from error
    return found, active
