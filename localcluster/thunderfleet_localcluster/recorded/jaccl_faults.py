"""The points at which a recorded JACCL can fail, as entries of its control file. Pure."""

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
WIRE = "wire"
"""The cable. It does not report errors, but changes or loses data: with one of WIRE_KEYS."""
WIRE_KEYS = ("flipAfterBytes", "loseAfterBytes", "swapAfterBytes", "repeatAfterBytes")
VALUES = "values"
"""Results of this rank's collectives, which are wrong for some sizes: with VALUES_KEYS."""
VALUES_KEYS = ("aboveBytes", "belowBytes")
VALUES_OPTIONS = ("aboveValue", "peer")
"""Which of these values are wrong: only those above a number, or only those that one rank has sent."""
HOW = "how"
HOWS = ("negated", "stale")
"""The kind of error: the opposite sign, or the result of the previous collective."""
POINT_KEYS = (
    "at",
    "errno",
    "device",
    "attempts",
    "delaySeconds",
    "hang",
    "fail",
    *WIRE_KEYS,
    *VALUES_KEYS,
    *VALUES_OPTIONS,
    HOW,
)


def checked_points(points: object) -> Sequence[Mapping[str, object]]:
    """``points`` if they are entries of a control file (``python/recorded_jaccl.py``). Raises LocalClusterError."""
    if not points:
        return []
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise LocalClusterError('points must be a JSON list of objects, such as [{"at": "rtr", "errno": 96}]', usage=True)
    for point in points:
        if point.get("at") not in (*POINTS, WIRE, VALUES):
            allowed = ", ".join((*POINTS, WIRE, VALUES))
            raise LocalClusterError(f"unknown point {point.get('at')!r}; allowed: {allowed}", usage=True)
        _check_bytes(point)
        if HOW in point and (point["at"] != VALUES or point[HOW] not in HOWS):
            raise LocalClusterError(f'"{HOW}" is {" or ".join(HOWS)}, and for the point "{VALUES}" only', usage=True)
        _check_options(point)
        if unknown := set(point) - set(POINT_KEYS):
            names = ", ".join(sorted(map(str, unknown)))
            raise LocalClusterError(f"unknown keys of a point: {names}; allowed: {', '.join(POINT_KEYS)}", usage=True)
    return points


def _check_options(point: Mapping[str, object]) -> None:
    """Raises LocalClusterError unless the restrictions of a point "values" are numbers."""
    given = [point[key] for key in VALUES_OPTIONS if key in point]
    if given and (point["at"] != VALUES or not all(type(number) is int and number >= 0 for number in given)):
        names = " and ".join(VALUES_OPTIONS)
        raise LocalClusterError(f'{names} are numbers of at least 0, and for the point "{VALUES}" only', usage=True)


def _check_bytes(point: Mapping[str, object]) -> None:
    """Raises LocalClusterError unless the point has the numbers of bytes that it needs."""

    def given(keys: Sequence[str]) -> list[object]:
        return [point[key] for key in keys if key in point]

    harms, sizes = given(WIRE_KEYS), given(VALUES_KEYS)
    right = all(type(number) is int and number >= 0 for number in (*harms, *sizes))
    if len(harms) != (point["at"] == WIRE) or not right:
        either = " or ".join((", ".join(WIRE_KEYS[:-1]), WIRE_KEYS[-1]))
        text = f'the point "wire" needs {either}, a number of bytes of at least 0; other points must not have them'
        raise LocalClusterError(text, usage=True)
    if len(sizes) != (len(VALUES_KEYS) if point["at"] == VALUES else 0):
        both = " and ".join(VALUES_KEYS)
        raise LocalClusterError(
            f'the point "values" needs {both}, numbers of bytes; other points must not have them', usage=True
        )
