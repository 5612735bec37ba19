"""The result as text: a table for people, JSON or YAML."""

import json
from typing import Any

import yaml
from thunderfleet_crds.uris import host_of
from thunderfleet_crds.vocabulary import CopySource, Transport

from thunderfleet_operator.placement.rating.preferences import LABELS
from thunderfleet_operator.placement.rating.score import ABOUT
from thunderfleet_operator.placement.units import gbits, gib, one_line
from thunderfleet_operator.plan_cli.report import GroupReport, PlanReport, SpeedReport
from thunderfleet_operator.plan_cli.weights import WeightsReport


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows under their headers, without empty columns."""
    filled = [i for i in range(len(rows[0])) if any(row[i] not in ("", "-") for row in rows[1:])]
    widths = {i: max(len(row[i]) for row in rows) for i in filled}
    return ["    " + "  ".join(row[i].ljust(widths[i]) for i in filled).rstrip() for row in rows]


def _label(transport: str | None) -> str:
    return next((label for value, label in LABELS.items() if value == transport), "")


def _rank_rows(group: GroupReport) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            "RANK",
            "MAC",
            "LAYERS",
            "MEMORY",
            "FREE BEFORE",
            "SERVES AT",
            "RING ADDRESS",
            "REACHES RANK 0 AT",
            "RDMA DEVICES BY RANK",
        )
    ]
    for rank in group.ranks:
        layers = f"{rank.layers.first}-{rank.layers.first + rank.layers.count - 1}" if rank.layers else "all"
        if group.parallelism == "Tensor":
            layers = f"{rank.rank + 1}/{len(group.ranks)} of each"
        rows.append(
            (
                str(rank.rank),
                rank.node,
                layers,
                gib(rank.memory_bytes),
                gib(rank.free_bytes),
                # Clients connect to rank 0.
                f"{rank.address}:{rank.gateway_port}" if rank.rank == 0 else "-",
                f"relay {rank.relay.address}" if rank.relay else rank.ring_address or "-",
                rank.coordinator or "-",
                ",".join(device or "-" for device in rank.devices) or "-",
            )
        )
    return rows


def _hop_rows(group: GroupReport) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("RANKS", "CABLE", "SPEED", "")]
    both = group.transport == Transport.JACCL or len(group.ranks) == 2
    for hop in group.hops:
        speed = gbits(hop.speed_mbps) if hop.speed_mbps else "unknown"
        known = "measured" if hop.measured else "expected, not measured"
        between = f"{min(hop.ranks)} ↔ {max(hop.ranks)}" if both else f"{hop.ranks[0]} → {hop.ranks[1]}"
        rows.append((between, hop.cable or "none: over the LAN", speed, known))
    return list(dict.fromkeys(rows))


def _unplaced(group: GroupReport) -> list[str]:
    lines = [f"group {group.index}: no placement ({group.reason})"]
    lines += ["  rejected placements, closest to a fit first:"] if group.near_misses else []
    lines += [f"    {miss.message}" for miss in group.near_misses]
    lines += ["  Macs:", *_columns([("MAC", "REASON"), *((mac.node, mac.message) for mac in group.macs)])]
    if not group.proven:
        lines.append("  the search reached its step limit: a placement may exist")
    return lines


def _decode(speed: SpeedReport | None) -> str:
    return f"{speed.decode_tokens_per_second:g}" if speed is not None else "-"


def _predicted(speed: SpeedReport) -> str:
    text = f"{speed.decode_tokens_per_second:g} tokens/s, prompts {speed.prefill_tokens_per_second:g} tokens/s (one request)"
    if speed.correction_percent is not None:
        text += f"; tokens/s includes a correction by {speed.correction_percent - 100:+d} % from benchmarks of this fleet"
    measured = speed.measured_decode_tokens_per_second
    if not measured or speed.error_percent is None:
        return text
    without = " without that correction" if speed.correction_percent is not None else ""
    return f"{text}; measured: {measured:g} tokens/s (the prediction is off by {speed.error_percent:+d} %{without})"


def _placed(group: GroupReport) -> list[str]:
    stays = " (keeps its placement)" if group.kept else ""
    limited = "" if group.proven else "; the search reached its step limit: a better placement may exist"
    lines = [
        f"group {group.index}: {_label(group.transport)}, {group.parallelism}{stays}",
        f"  {group.reason}{limited}",
        "  ranks:",
        *_columns(_rank_rows(group)),
    ]
    if group.hops:
        lines += ["  cables:", *_columns(_hop_rows(group))]
    if group.predicted is not None:
        lines.append(f"  predicted: {_predicted(group.predicted)}")
    parts = [(entry.part, entry.text, ABOUT[entry.part]) for entry in group.score]
    lines += ["  score, compared from top to bottom:", *_columns([("PART", "VALUE", ""), *parts])]
    losers = [(", ".join(r.nodes), _label(r.transport), r.parallelism, _decode(r.predicted), r.why) for r in group.runners_up]
    if losers:
        return [*lines, "  runners-up:", *_columns([("MACS", "TRANSPORT", "SPLIT", "TOKENS/S", "WHY WORSE"), *losers])]
    return [*lines, "  runners-up: none"]


def _weights(weights: WeightsReport, model: str) -> list[str]:
    server = host_of(model) if "://" in model else "the hub"
    size = f", commit {weights.commit}, {gib(weights.bytes)}" if weights.bytes is not None else ""
    lines = [f"weights: {f'ModelCache {weights.model_cache}' if weights.model_cache else 'no ModelCache'}{size}"]
    sources = {CopySource.HUB: f"from {server}", CopySource.PEER: "from another Mac"}
    rows: list[tuple[str, ...]] = [("MAC", "PRESENT", "FREE DISK", "FETCHES", "PROBLEM")]
    for mac in weights.macs:
        fetches = f"{gib(mac.fetch_bytes)} {sources[mac.source]}" if mac.source is not None else "-"
        rows.append((mac.node, gib(mac.present_bytes), gib(mac.free_bytes), fetches, mac.problem or "-"))
    return [*lines, *_columns(rows)]


def _table(report: PlanReport) -> str:
    lines = [f"{report.deployment}: {report.model}", report.model_resolved]
    lines += _weights(report.weights, report.model) if report.weights is not None else []
    for group in report.groups:
        lines.append("")
        lines += _placed(group) if group.placed else _unplaced(group)
    return "\n".join(map(one_line, lines))


def render(report: PlanReport, form: str) -> str:
    """The report as ``table``, ``json`` or ``yaml``."""
    if form == "table":
        return _table(report)
    body: Any = report.model_dump(mode="json", by_alias=True)
    return json.dumps(body, indent=2) if form == "json" else yaml.safe_dump(body, sort_keys=False, allow_unicode=True).rstrip()
