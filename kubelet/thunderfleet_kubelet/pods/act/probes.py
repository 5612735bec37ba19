"""Runs one probe or lifecycle hook: exec, HTTP, TCP or gRPC, with a time limit.

The host is the pod's IP, which is the node's address, unless the action names another.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp

from thunderfleet_kubelet.containers.streams.exec_session import RunCommand

log = logging.getLogger(__name__)

Json = dict[str, Any]

BODY_BYTES = 10 * 1024
REDIRECTS = 10
"""How many answers of one probe are read, as in Kubernetes."""
REDIRECTED = "Probe terminated redirects, Response body: "
"""Prefix of the output of an HTTP probe that succeeded with a redirect: the healthy server may be another one."""


def port_number(port: object, container: Json) -> int:
    """A probe's port: a number, or the name of one of the container's ports. Raises ValueError."""
    if isinstance(port, int) or str(port).isdigit():
        return int(str(port))
    for item in container.get("ports") or []:
        if item.get("name") == port:
            return int(item["containerPort"])
    raise ValueError(f"container {container['name']!r} has no port named {port!r}")


async def run(action: Json, container: Json, host: str, run_command: RunCommand, seconds: float) -> tuple[bool, str]:
    """Runs a probe or hook. Returns whether it succeeded, and its output or error."""
    try:
        return await _run(action, container, host, run_command, seconds)
    except TimeoutError:
        return False, f"timed out after {seconds:g} s"
    except (OSError, ValueError) as error:
        return False, str(error)
    except Exception as error:
        # The probe's task must survive; the next run may succeed.
        log.exception("container %s: probe or hook failed unexpectedly", container["name"])
        return False, f"failed unexpectedly: {error!r}"


async def _run(action: Json, container: Json, host: str, run_command: RunCommand, seconds: float) -> tuple[bool, str]:
    if action.get("exec"):
        code, output = await run_command([str(word) for word in action["exec"].get("command") or []], seconds)
        return code == 0, output or f"exit code {code}"
    if action.get("httpGet"):
        return await _http(action["httpGet"], container, host, seconds)
    if action.get("tcpSocket"):
        return await _tcp(action["tcpSocket"], container, host, seconds)
    if action.get("grpc"):
        return await _grpc(action["grpc"], host, seconds)
    if action.get("sleep"):
        # A deletion may give less grace than the pod's spec, against which the API server validated the sleep.
        await asyncio.sleep(min(seconds, float(action["sleep"]["seconds"])))
        return True, ""
    return False, "no handler; set exec, httpGet, tcpSocket or grpc"


async def _http(action: Json, container: Json, host: str, seconds: float) -> tuple[bool, str]:
    scheme = str(action.get("scheme") or "HTTP").lower()
    address = str(action.get("host") or host)
    shown = f"[{address}]" if ":" in address else address
    path = "/" + str(action.get("path") or "/").lstrip("/")
    url = f"{scheme}://{shown}:{port_number(action['port'], container)}{path}"
    headers: Mapping[str, str] = {
        "User-Agent": "kube-probe/thunderfleet",
        "Accept": "*/*",
        **{str(item["name"]): str(item["value"]) for item in action.get("httpHeaders") or []},
    }
    try:
        # Probes do not verify certificates, as on any node.
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.timeout(seconds):
            for _ in range(REDIRECTS):
                async with session.get(url, headers=headers, ssl=False, allow_redirects=False) as answer:
                    text = (await answer.content.read(BODY_BYTES)).decode("utf-8", "replace")
                    following = _redirect(answer)
                    if following is None:
                        if 300 <= answer.status < 400:
                            return True, f"{REDIRECTED}{text.strip()[:200]}"
                        if 200 <= answer.status < 300:
                            return True, ""
                        return False, f"HTTP probe failed with statuscode: {answer.status}: GET {url}: {text.strip()[:200]}"
                url = following
            return False, f"GET {url}: stopped after {REDIRECTS} redirects"
    except TimeoutError:
        return False, f"GET {url}: timed out after {seconds:g} s"
    except aiohttp.ClientError as error:
        return False, f"GET {url}: {error}"


def _redirect(answer: aiohttp.ClientResponse) -> str | None:
    """Where a redirect to the same host leads; None for any other answer. A redirect to another host is a success."""
    target = answer.headers.get("Location")
    if answer.status not in (301, 302, 303, 307, 308) or not target:
        return None
    try:
        following = urljoin(str(answer.url), target)
        there = urlsplit(following)
    except ValueError:
        return None
    return following if there.hostname == answer.url.host and there.scheme in ("http", "https") else None


async def _tcp(action: Json, container: Json, host: str, seconds: float) -> tuple[bool, str]:
    address, port = str(action.get("host") or host), port_number(action["port"], container)
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(address, port)
    except TimeoutError:
        return False, f"TCP {address}:{port}: timed out after {seconds:g} s"
    except OSError as error:
        return False, f"TCP {address}:{port}: {error.strerror or error}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True, ""


async def _grpc(action: Json, host: str, seconds: float) -> tuple[bool, str]:
    # Most kubelets run no such probe, and HTTP/2 takes 2 MB.
    from thunderfleet_kubelet.pods.act import grpc_health

    port, service = int(action["port"]), str(action.get("service") or "")
    shown = f"gRPC {host}:{port}"
    try:
        async with asyncio.timeout(seconds):
            status = await grpc_health.check(host, port, service)
    except TimeoutError:
        return False, f"{shown}: timed out after {seconds:g} s"
    except OSError as error:
        return False, f"{shown}: {error.strerror or error}"
    except grpc_health.NoAnswer as error:
        return False, f"{shown}: {error}"
    if status != grpc_health.STATUSES[grpc_health.SERVING]:
        return False, f'{shown}: service unhealthy (responded with "{status}")'
    return True, ""
