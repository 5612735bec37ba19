"""What a benchmark gives back, and how it is shown: as a table for people and as JSON for programs. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FORMAT = 1
"""Version of the JSON format; increased when a field is removed or changes its meaning."""

_HEADS = ("FIGURE", "OURS", "OTHER SIDE", "RATIO", "WANTED", "HOLDS", "HOW")


@dataclass(frozen=True)
class Bound:
    """The bound of a figure: of its ``ratio``, or of its ``value`` if there is nothing to compare with."""

    sense: Literal["<=", ">="]
    limit: float

    def holds(self, number: float) -> bool:
        return number <= self.limit if self.sense == "<=" else number >= self.limit


@dataclass(frozen=True)
class Figure:
    """One line of the table. ``ours`` and ``other`` are every sample taken, in ``unit``; their medians are compared.

    Raises ValueError for a figure without samples, and for a bound of a ratio without a second side.
    """

    name: str
    unit: str
    ours: tuple[float, ...]
    other: tuple[float, ...] = ()
    other_name: str = ""
    bound: Bound | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if not self.ours:
            raise ValueError(f"{self.name}: a figure needs a sample")
        if bool(self.other) != bool(self.other_name):
            raise ValueError(f"{self.name}: the other side needs both its name and its samples")
        if self.other and statistics.median(self.other) <= 0:
            raise ValueError(f"{self.name}: no ratio to {self.other_name}, which took {self.other}")

    @property
    def value(self) -> float:
        return statistics.median(self.ours)

    @property
    def other_value(self) -> float | None:
        return statistics.median(self.other) if self.other else None

    @property
    def ratio(self) -> float | None:
        """Ratio of our median to the other side's."""
        return self.value / self.other_value if self.other_value else None

    @property
    def holds(self) -> bool | None:
        """Whether the bound holds; None without one."""
        if self.bound is None:
            return None
        return self.bound.holds(self.value if self.ratio is None else self.ratio)

    def to_json(self) -> dict[str, Any]:
        """As in the file that ``--json`` writes."""
        other = {"name": self.other_name, "value": self.other_value, "samples": list(self.other)} if self.other else None
        bound = None if self.bound is None else {"sense": self.bound.sense, "limit": self.bound.limit}
        return {
            "name": self.name,
            "unit": self.unit,
            "value": self.value,
            "samples": list(self.ours),
            "other": other,
            "ratio": self.ratio,
            "bound": bound,
            "holds": self.holds,
            "note": self.note,
        }


@dataclass(frozen=True)
class Missing:
    """A benchmark that failed, and why."""

    benchmark: str
    why: str


@dataclass
class Report:
    """Everything of one run."""

    machine: Mapping[str, Any]
    figures: list[Figure] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether everything was measured and every bound holds."""
        return not self.missing and all(figure.holds is not False for figure in self.figures)

    def to_json(self) -> dict[str, Any]:
        """The file's content.

        - ``format``: 1
        - ``machine``: ``system``, ``cpu``, ``cores``, ``loadAverage`` and ``measuredAt`` at the start, ``versions`` of
          python, mlx and mlx-lm
        - ``figures``: each with ``name``, ``unit``, ``value`` (the median of ``samples``), ``other`` (null, or the side that it
          is compared with: ``name``, ``value``, ``samples``), ``ratio`` (``value`` to that of ``other``, or null), ``bound``
          (null, or ``sense`` and ``limit``, for the ratio or, without one, the value), ``holds`` (null without a bound),
          ``note``
        - ``missing``: what was not measured, each with ``benchmark`` and ``why``
        - ``holds``: everything was measured and every bound holds
        """
        return {
            "format": FORMAT,
            "machine": dict(self.machine),
            "figures": [figure.to_json() for figure in self.figures],
            "missing": [{"benchmark": entry.benchmark, "why": entry.why} for entry in self.missing],
            "holds": self.holds,
        }


def number(value: float) -> str:
    """Three significant digits; an integer from 100 on."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _row(figure: Figure) -> tuple[str, ...]:
    unit = f" {figure.unit}" if figure.unit else ""
    other = "" if figure.other_value is None else f"{number(figure.other_value)}{unit} ({figure.other_name})"
    bound = "" if figure.bound is None else f"{figure.bound.sense} {number(figure.bound.limit)}"
    if figure.bound is not None and figure.ratio is None:
        bound += unit
    held = {True: "yes", False: "NO", None: ""}[figure.holds]
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    return (figure.name, f"{number(figure.value)}{unit}", other, ratio, bound, held, figure.note)


def table(figures: Sequence[Figure]) -> str:
    """The figures in columns; empty columns are left out."""
    rows = [_HEADS, *(_row(figure) for figure in figures)]
    kept = [column for column in range(len(_HEADS)) if column == 0 or any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in kept}
    return "\n".join("  ".join(row[column].ljust(widths[column]) for column in kept).rstrip() for row in rows)
