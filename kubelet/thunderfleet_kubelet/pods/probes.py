"""Startup, readiness and liveness: whether a container is well, asked at intervals.

``Count`` is the pure part: results in, a verdict out, changed only after as many equal results as the thresholds say. The rest
asks: an exec, an HTTP(S) or a TCP probe, each with its time limit. The host of a probe is the pod's IP, which is the node's
address, unless it names another.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

log = logging.getLogger(__name__)

Json = dict[str, Any]
Kind = Literal["startup", "readiness", "liveness"]

BODY_BYTES = 10 * 1024


@dataclass
class Count:
    """One probe's thresholds and where it stands. ``verdict`` None until either threshold was reached."""

    success_threshold: int
    failure_threshold: int
    verdict: bool | None = None
    _last: bool | None = None
    _run: int = 0

    def add(self, success: bool) -> bool:
        """Takes one result; True when the verdict changed by it."""
        self._run = self._run + 1 if success == self._last else 1
        self._last = success
        if self._run < (self.success_threshold if success else self.failure_threshold) or self.verdict == success:
            return False
        self.verdict = success
        return True


@dataclass(frozen=True)
class Settings:
    """A probe's numbers with Kubernetes' defaults. Seconds."""

    delay: float
    period: float
    timeout: float
    success_threshold: int
    failure_threshold: int

    @classmethod
    def of(cls, probe: Json) -> "Settings":
        return cls(
            delay=float(probe.get("initialDelaySeconds") or 0),
            period=float(probe.get("periodSeconds") or 10),
            timeout=float(probe.get("timeoutSeconds") or 1),
            success_threshold=int(probe.get("successThreshold") or 1),
            failure_threshold=int(probe.get("failureThreshold") or 3),
        )


Exec = Callable[[list[str], float], Awaitable[tuple[int, str]]]


def port_number(port: object, container: Json) -> int:
    """A probe's port: a number, or the name of one of the container's ports. Raises ValueError."""
    if isinstance(port, int) or str(port).isdigit():
        return int(str(port))
    for item in container.get("ports") or []:
        if item.get("name") == port:
            return int(item["containerPort"])
    raise ValueError(f"container {container['name']!r} has no port named {port!r}")


async def ask(action: Json, container: Json, host: str, run: Exec, seconds: float) -> tuple[bool, str]:
    """One look at the container, by a probe or a lifecycle hook's ``action``: whether it went well, and a sentence."""
    try:
        if action.get("exec"):
            code, said = await run([str(word) for word in action["exec"].get("command") or []], seconds)
            return code == 0, said or f"exit code {code}"
        if action.get("httpGet"):
            return await _http(action["httpGet"], container, host, seconds)
        if action.get("tcpSocket"):
            return await _tcp(action["tcpSocket"], container, host, seconds)
        if action.get("grpc"):
            return False, "gRPC probes are not supported by this kubelet: use httpGet, tcpSocket or exec"
        if action.get("sleep"):
            # A deletion may give less grace than the pod's spec, by which the API server checked this.
            await asyncio.sleep(min(seconds, float(action["sleep"]["seconds"])))
            return True, ""
    except TimeoutError:
        return False, f"no result within {seconds:g} s"
    except (OSError, ValueError) as error:
        return False, str(error)
    except Exception as error:
        # A probe that breaks down is a failed one, and is asked again: its task must not end unseen.
        log.exception("container %s: probe or hook broke down", container["name"])
        return False, f"broke down: {error!r}"
    return False, "the probe has no handler: give exec, httpGet or tcpSocket"


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
        # Probes check that the program answers, not who it is: certificates are not verified, as on any node.
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, headers=headers, ssl=False, allow_redirects=False) as answer,
        ):
            text = (await answer.content.read(BODY_BYTES)).decode("utf-8", "replace")
            if 200 <= answer.status < 400:
                return True, ""
            return False, f"HTTP probe failed with statuscode: {answer.status}: GET {url}: {text.strip()[:200]}"
    except TimeoutError:
        return False, f"GET {url}: no answer within {seconds:g} s"
    except aiohttp.ClientError as error:
        return False, f"GET {url}: {error}"


async def _tcp(action: Json, container: Json, host: str, seconds: float) -> tuple[bool, str]:
    address, port = str(action.get("host") or host), port_number(action["port"], container)
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(address, port)
    except TimeoutError:
        return False, f"TCP {address}:{port}: no answer within {seconds:g} s"
    except OSError as error:
        return False, f"TCP {address}:{port}: {error.strerror or error}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True, ""
