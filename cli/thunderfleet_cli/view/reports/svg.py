"""``topology -o svg``: Macs on a circle for each connected part of the fleet, cables as lines. Pure."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from thunderfleet_cli.view.reports.topology import Cable, Mac, Topology

BOX_WIDTH, BOX_HEIGHT = 150, 46
GAP = 40
MARGIN = 30
HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" \
font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="#ffffff"/>
"""
BOLD = ' font-weight="bold"'
GOOD, BAD, IDLE = "#2e7d32", "#c62828", "#9e9e9e"

Point = tuple[float, float]


def svg(drawn: Topology) -> str:
    """The drawing as a complete SVG document. A group has one color; a cable that is not connected is red and dashed."""
    parts = list(_parts(drawn))
    places, width, height = _placed(parts)
    lines = [HEAD.format(width=width, height=height)]
    beside: dict[frozenset[str], int] = {}
    for cable in drawn.cables:
        pair = frozenset((cable.a[0], cable.b[0]))
        beside[pair] = beside.get(pair, -1) + 1
        lines.append(_line(cable, places, beside[pair]))
    lines += [_box(mac, places[mac.name]) for mac in drawn.macs]
    return "".join(lines) + "</svg>\n"


def color(group: str) -> str:
    """The color of a group, the same in every drawing."""
    hue = int(hashlib.sha256(group.encode()).hexdigest()[:6], 16) % 360
    return f"hsl({hue},60%,82%)"


def _parts(drawn: Topology) -> Iterator[Sequence[Mac]]:
    """Macs that cables connect, the largest part first; single Macs together at the end."""
    neighbors: dict[str, set[str]] = {mac.name: set() for mac in drawn.macs}
    for cable in drawn.cables:
        neighbors[cable.a[0]].add(cable.b[0])
        neighbors[cable.b[0]].add(cable.a[0])
    by_name, seen, parts, single = {mac.name: mac for mac in drawn.macs}, set[str](), list[list[Mac]](), list[Mac]()
    for mac in drawn.macs:
        if mac.name in seen:
            continue
        reached, waiting = list[str](), [mac.name]
        seen.add(mac.name)
        while waiting:
            reached.append(one := waiting.pop())
            new = sorted(neighbors[one] - seen)
            seen.update(new)
            waiting += new
        if len(reached) == 1:
            single.append(mac)
        else:
            parts.append([by_name[one] for one in reached])
    yield from sorted(parts, key=len, reverse=True)
    for start in range(0, len(single), 6):
        yield single[start : start + 6]


def _placed(parts: Sequence[Sequence[Mac]]) -> tuple[Mapping[str, Point], float, float]:
    """The center of each Mac, and the size of the drawing. Parts stand in rows."""
    places: dict[str, Point] = {}
    left, top, row, width = float(MARGIN), float(MARGIN), 0.0, 0.0
    limit = 1400.0
    for part in parts:
        radius = 0.0 if len(part) == 1 else max(BOX_WIDTH * 0.75, len(part) * (BOX_WIDTH + GAP) / (2 * math.pi))
        across, down = 2 * radius + BOX_WIDTH, 2 * radius + BOX_HEIGHT
        if left > MARGIN and left + across > limit:
            left, top, row = float(MARGIN), top + row + GAP, 0.0
        for number, mac in enumerate(part):
            angle = 2 * math.pi * number / len(part) + math.pi
            x, y = left + across / 2 + radius * math.cos(angle), top + down / 2 + radius * math.sin(angle)
            places[mac.name] = (x, y)
        left, row = left + across + GAP, max(row, down)
        width = max(width, left)
    return places, width + MARGIN, top + row + MARGIN


def _line(cable: Cable, places: Mapping[str, Point], beside: int) -> str:
    (x1, y1), (x2, y2) = places[cable.a[0]], places[cable.b[0]]
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    # Several cables between two Macs lie beside each other.
    shift = 8.0 * ((beside + 1) // 2) * (-1 if beside % 2 else 1)
    dx, dy = -(y2 - y1) / length * shift, (x2 - x1) / length * shift
    style = f'stroke="{GOOD}"' if cable.connected else f'stroke="{BAD}" stroke-dasharray="6 4"'
    title = f"{cable.name}: {cable.problem or ' '.join(word for word in (cable.speed, 'RDMA' if cable.rdma else '') if word)}"
    return (
        f'<line x1="{x1 + dx:.1f}" y1="{y1 + dy:.1f}" x2="{x2 + dx:.1f}" y2="{y2 + dy:.1f}" {style} '
        f'stroke-width="{4 if cable.rdma else 2}"><title>{_safe(title)}</title></line>\n'
    )


def _box(mac: Mac, center: Point) -> str:
    x, y = center[0] - BOX_WIDTH / 2, center[1] - BOX_HEIGHT / 2
    groups = sorted({group for group, _, _ in mac.ranks})
    fill = color(groups[0]) if groups else "#f5f5f5"
    stroke = BAD if not mac.ready else GOOD if groups else IDLE
    title = mac.problem or ", ".join(f"{group} rank {rank}: {state}" for group, rank, state in mac.ranks) or "no ranks"
    below = ", ".join(groups) or f"{mac.chip} {mac.memory}".strip()
    return (
        f'<g><title>{_safe(title)}</title><rect x="{x:.1f}" y="{y:.1f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="2"/>'
        + _text(center, -4, mac.name, BOLD)
        + _text(center, 13, below)
        + "</g>\n"
    )


def _text(center: Point, down: int, text: str, weight: str = "") -> str:
    x, y = center
    return f'<text x="{x:.1f}" y="{y + down:.1f}" text-anchor="middle"{weight}>{_safe(_short(text))}</text>'


def _short(text: str) -> str:
    return text if len(text) <= 22 else text[:21] + "…"


def _safe(text: str) -> str:
    """Text of an XML document."""
    return escape("".join(one for one in text if one.isprintable()))
