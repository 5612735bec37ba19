"""The check of `helm test`: the API serves the kinds, one operator leads, every Mac has a NodeProfile."""

import asyncio
import os
import sys
import time

import aiohttp
from thunderfleet_lib.kube import ApiError, Kube

SECONDS = 90.0
API = "/apis/thunderfleet.io/v1alpha1"
KINDS = {"modelcaches", "modeldeployments", "nodeprofiles", "thunderboltlinks"}


async def kinds(kube: Kube) -> str:
    served = {resource["name"] for resource in (await kube.get(API))["resources"]}
    missing = KINDS - served
    if missing:
        raise LookupError(f"the API server does not serve {', '.join(sorted(missing))}: are the CRDs installed?")
    return f"the API server serves {', '.join(sorted(KINDS))}"


async def operator(kube: Kube) -> str:
    path = f"/api/v1/namespaces/{os.environ['NAMESPACE']}/pods"
    pods, _ = await kube.list(path, labelSelector=os.environ["OPERATOR_SELECTOR"])
    said = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        for pod in pods:
            name, address = pod["metadata"]["name"], (pod.get("status") or {}).get("hostIP")
            if not address:
                said.append(f"{name} is not scheduled yet")
                continue
            host = f"[{address}]" if ":" in address else address
            try:
                async with session.get(f"http://{host}:{os.environ['OPERATOR_PORT']}/readyz") as answer:
                    text = (await answer.text()).strip()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                text = f"does not respond: {error or 'timeout'}"
            said.append(f"{name}: {text}")
    if not any(text.endswith(": leader") for text in said):
        raise LookupError(f"no operator is the leader ({'; '.join(said) or 'it has no pods'})")
    return "; ".join(said)


async def macs(kube: Kube) -> str:
    nodes, _ = await kube.list("/api/v1/nodes", labelSelector="kubernetes.io/os=darwin")
    profiles, _ = await kube.list(f"{API}/nodeprofiles")
    names = sorted(node["metadata"]["name"] for node in nodes)
    missing = set(names) - {profile["metadata"]["name"] for profile in profiles if profile.get("status")}
    if missing:
        raise LookupError(f"no NodeProfile for {', '.join(sorted(missing))}: check that the agent runs there")
    return f"every Mac has a NodeProfile: {', '.join(names)}" if names else "no Mac has joined yet"


async def main() -> int:
    deadline = time.monotonic() + SECONDS
    async with Kube.in_pod() as kube:
        for question in (kinds, operator, macs):
            while True:
                try:
                    print("ok:", await question(kube), flush=True)
                    break
                except (LookupError, ApiError) as error:
                    if time.monotonic() > deadline:
                        print("failed:", error, flush=True)
                        return 1
                await asyncio.sleep(1)
    return 0


sys.exit(asyncio.run(main()))
