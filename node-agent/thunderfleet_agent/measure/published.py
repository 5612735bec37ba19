"""The results of probes as status shows them, and read back from there. Pure.

A result of this Mac alone is in its NodeProfile, one of an address beside the reachability of that address, and one of a cable
in its ThunderboltLink. What is written can be read back: after a restart without a state folder, status is the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thunderfleet_crds.kinds.nodeprofile import Benchmarks, ComputeBenchmark, MemoryBenchmark, NodeProfile, Reachability
from thunderfleet_crds.kinds.thunderboltlink import Measurement, ThunderboltLink
from thunderfleet_crds.meta.fields import quantity
from thunderfleet_crds.vocabulary import MeasurementTransport

from thunderfleet_agent.measure.schedule.figures import GIGA, Figures, Result, result
from thunderfleet_agent.measure.schedule.probes import Key, ProbeKind, Target

Results = Mapping[Key, Result]


def benchmarks(results: Results) -> Benchmarks | None:
    """GPU compute and memory bandwidth, for the NodeProfile."""
    compute, memory = (results.get(Key(kind)) for kind in (ProbeKind.GPU, ProbeKind.MEMORY))
    flops = compute.figures.flops if compute else None
    speed = memory.figures.megabytes_per_second if memory else None
    if flops is None and speed is None:
        return None
    # Every value is derived from the ones in status, so that a restart does not change it.
    gigaflops = None if flops is None else max(1, round(flops / GIGA))
    return Benchmarks(
        compute=ComputeBenchmark(
            fp16_gigaflops=gigaflops,
            measured_at=compute.measured_at,
            mlx_version=compute.figures.mlx_version,
            os_version=compute.figures.os_version,
        )
        if compute and gigaflops is not None
        else None,
        memory=MemoryBenchmark(
            megabytes_per_second=speed,
            measured_at=memory.measured_at,
            mlx_version=memory.figures.mlx_version,
            os_version=memory.figures.os_version,
        )
        if memory and speed is not None
        else None,
        tflops=_readable(gigaflops / 1000) if gigaflops is not None else None,
        gigabytes_per_second=_readable(speed / 1000) if speed is not None else None,
    )


def with_figures(results: Results, facts: Iterable[Reachability]) -> tuple[Reachability, ...]:
    """The facts with the figures measured at the same address; those of cables are published in links."""
    filled = []
    for fact in facts:
        known = results.get(Key(ProbeKind.SOCKET, Target(fact.node, fact.address)))
        figures = known.figures if known else Figures()
        filled.append(
            fact.model_copy(
                update={
                    "rtt_microseconds": fact.rtt_microseconds if figures.rtt_microseconds is None else figures.rtt_microseconds,
                    "jitter_microseconds": figures.jitter_microseconds,
                    "sent_mbps": figures.sent_mbps,
                    "received_mbps": figures.received_mbps,
                    "measured_at": known.measured_at if known else None,
                }
            )
        )
    return tuple(filled)


def measurements(results: Results, here: str, link: str) -> tuple[Measurement, ...]:
    """Throughput received over a link: the newest result of each transport."""
    found: dict[MeasurementTransport, Measurement] = {}
    for each in sorted(results.values(), key=lambda each: each.measured_at):
        if each.link != link or each.figures.transport is None:
            continue
        found[each.figures.transport] = Measurement(
            from_=each.node,
            to=here,
            transport=each.figures.transport,
            throughput_mbps=each.figures.received_mbps,
            rtt_microseconds=each.figures.rtt_microseconds,
            jitter_microseconds=each.figures.jitter_microseconds,
            payload_bytes=each.figures.payload_bytes,
            measured_at=each.measured_at,
        )
    return tuple(found[transport] for transport in sorted(found))


def _readable(value: float) -> str:
    """At least two significant digits."""
    return quantity(value, 1 if value >= 10 else 2 if value >= 0.1 else 3)


def in_profile(profile: NodeProfile | None) -> list[Result]:
    """This Mac's results in its NodeProfile."""
    if profile is None:
        return []
    found = []
    benchmarks = profile.status.benchmarks
    if benchmarks and (compute := benchmarks.compute):
        figures = Figures(flops=compute.fp16_gigaflops * GIGA, mlx_version=compute.mlx_version, os_version=compute.os_version)
        found.append(result(Key(ProbeKind.GPU), figures, compute.measured_at))
    if benchmarks and (memory := benchmarks.memory):
        figures = Figures(
            megabytes_per_second=memory.megabytes_per_second, mlx_version=memory.mlx_version, os_version=memory.os_version
        )
        found.append(result(Key(ProbeKind.MEMORY), figures, memory.measured_at))
    for fact in profile.status.reachability:
        if fact.measured_at is not None:
            figures = Figures(
                rtt_microseconds=fact.rtt_microseconds,
                jitter_microseconds=fact.jitter_microseconds,
                sent_mbps=fact.sent_mbps,
                received_mbps=fact.received_mbps,
                transport=MeasurementTransport.SOCKET,
            )
            found.append(result(Key(ProbeKind.SOCKET, Target(fact.node, fact.address)), figures, fact.measured_at))
    return found


def in_links(node: str, links: Iterable[ThunderboltLink]) -> list[Result]:
    """This Mac's measurements over its cables. The address is the one in the other end's status."""
    found = []
    for link in links:
        addresses: Mapping[str, str | None] = {end.node: end.address for end in link.status.endpoints}
        for each in link.status.measurements:
            if each.to != node:
                continue
            by_socket = each.transport is MeasurementTransport.SOCKET
            address = (addresses.get(each.from_) or "") if by_socket else ""
            figures = Figures(
                received_mbps=each.throughput_mbps,
                rtt_microseconds=each.rtt_microseconds,
                jitter_microseconds=each.jitter_microseconds,
                payload_bytes=each.payload_bytes,
                transport=each.transport,
            )
            key = Key(ProbeKind.SOCKET if by_socket else ProbeKind.RDMA, Target(each.from_, address, link.metadata.name))
            found.append(result(key, figures, each.measured_at))
    return found
