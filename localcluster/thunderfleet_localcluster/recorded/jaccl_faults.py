"""Where a recorded JACCL can be made to fail, as entries of its control file. Pure."""

from collections.abc import Mapping, Sequence

from thunderfleet_localcluster.errors import LocalClusterError

POINTS = (
    "find_device",
    "open_device",
    "protection_domain",
    "completion_queue",
    "queue_pair",
    "memory_region",
    "init",
    "gid",
    "rtr",
    "rts",
    "barrier",
    "send",
    "recv",
)
"""Points of JACCL's start and of its collectives, in order; the same as in ``python/recorded_jaccl.py``."""
POINT_KEYS = ("at", "errno", "device", "attempts", "delaySeconds", "hang", "fail")


def checked_points(points: object) -> Sequence[Mapping[str, object]]:
    """``points`` if they are entries of a control file (``python/recorded_jaccl.py``). Raises LocalClusterError."""
    if not points:
        return []
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise LocalClusterError('points must be a JSON list of objects, such as [{"at": "rtr", "errno": 96}]', usage=True)
    for point in points:
        if point.get("at") not in POINTS:
            raise LocalClusterError(f"unknown point {point.get('at')!r}; allowed: {', '.join(POINTS)}", usage=True)
        if unknown := set(point) - set(POINT_KEYS):
            names = ", ".join(sorted(map(str, unknown)))
            raise LocalClusterError(f"unknown keys of a point: {names}; allowed: {', '.join(POINT_KEYS)}", usage=True)
    return points
