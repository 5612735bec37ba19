"""Finds the API server and its CA: nothing secret is sent before the CA's hash is verified."""

import asyncio
import base64
import contextlib
import json
import ssl

import aiohttp
import yaml
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from thunderfleet_lib.net.discovery import ca_hash, choose_ca, shown, unverified

from thunderfleet_kubelet.bootstrap.arguments import Server
from thunderfleet_kubelet.bootstrap.errors import JoinError

CONNECT_SECONDS = 10.0
CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
MAX_INFO = 64 * 1024
"""Bytes of this ConfigMap, which has a few kilobytes. The server is not trusted yet."""


async def _handshake(server: Server) -> list[x509.Certificate]:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(server.host, server.port, ssl=unverified())
    except TimeoutError:
        raise JoinError(f"{server.url}: timed out after {CONNECT_SECONDS:g} s; check the address and the network") from None
    except ssl.SSLError as error:
        raise JoinError(f"{server.url}: not a TLS server ({error.reason}); check that this is the API server's port") from None
    except OSError as error:
        why = error.strerror or str(error) or "connection closed; check that it is a TLS server"
        raise JoinError(
            f"{server.url}: cannot connect ({why}); check that the API server is running and that the address is right"
        ) from None
    try:
        return shown(writer.get_extra_info("ssl_object"))
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await writer.wait_closed()


async def _cluster_info(server: Server) -> list[x509.Certificate]:
    """The CA in the public ConfigMap ``cluster-info``, as kubeadm publishes it; empty without one."""
    timeout = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(server.url + CLUSTER_INFO, ssl=unverified(), allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                return []
            text = b""
            async for part in answer.content.iter_any():
                text += part
                if len(text) > MAX_INFO:
                    return []
        document = yaml.safe_load(json.loads(text)["data"]["kubeconfig"])
        pem = base64.b64decode(document["clusters"][0]["cluster"]["certificate-authority-data"])
        found = x509.load_pem_x509_certificates(pem)
        for one in found:
            ca_hash(one)
        return found
    except (aiohttp.ClientError, TimeoutError, OSError, yaml.YAMLError, UnsupportedAlgorithm):
        return []
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return []


async def fetch_ca(server: Server, wanted: str) -> bytes:
    """The cluster's CA (PEM), verified by its hash. Raises JoinError. Sends nothing secret."""
    seen = await _handshake(server)
    found = choose_ca(seen, wanted)
    if found is None:
        published = await _cluster_info(server)
        found = choose_ca(published, wanted)
        if found is None:
            hashes = ", ".join(ca_hash(one) for one in (*published, *seen)) or "none"
            raise JoinError(
                f"{server.url}: no CA with hash {wanted}, found {hashes}; the token was not sent. Use --server and --ca-hash "
                "from one output of `thunderfleet local token` or kubeadm; a wrong hash means another cluster or an "
                "intercepted connection"
            )
    return found.public_bytes(serialization.Encoding.PEM)
