"""Tables and text for a terminal: colored there, plain in a pipe.

Rich detects what the terminal can do and how it renders a style. Lines are written without it: its layout, of which nothing is
needed here, takes seconds for the thousands of lines of a large fleet.
"""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import COLOR_SYSTEMS, Console
from rich.style import Style

from thunderfleet_cli.terminal import printable

GOOD, BAD, DOUBTFUL, QUIET = "green", "red", "yellow", "dim"

Cell = str | tuple[str, str]
"""A text, or a text and its style."""
Rows = Sequence[Sequence[Cell]]


class Page:
    """Writes to standard output, or to ``console``."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        name = self._console.color_system
        self._colors = None if name is None else COLOR_SYSTEMS[name]

    def line(self, text: str = "", style: str = "") -> None:
        """A line. Nothing in it is markup."""
        self.cells((text, style))

    def cells(self, *cells: Cell) -> None:
        """A line of several styles."""
        self._write([map(_styled, cells)])

    def table(self, columns: Sequence[str], rows: Rows) -> None:
        """A table like those of kubectl: as wide as its contents, regardless of the terminal's width."""
        cells = [[(column, "bold") for column in columns], *([_styled(cell) for cell in row] for row in rows)]
        widths = [max(cell_len(row[at][0]) for row in cells) for at in range(len(columns))]
        self._write(_padded(row, widths) for row in cells)

    def _write(self, lines: Iterable[Iterable[tuple[str, str]]]) -> None:
        try:
            for line in lines:
                self._console.file.write("".join([self._rendered(text, style) for text, style in line]) + "\n")
            self._console.file.flush()
        except BrokenPipeError:
            # Who reads it has seen enough, such as `head`.
            self._console.on_broken_pipe()

    def _rendered(self, text: str, style: str) -> str:
        text = printable(text)
        if self._colors is None or not style:
            return text
        shown = Style.parse(style)
        return (shown.without_color if self._console.no_color else shown).render(text, color_system=self._colors)


def _padded(row: Sequence[tuple[str, str]], widths: Sequence[int]) -> Iterable[tuple[str, str]]:
    """The cells of a row with what is between them, to the last one that is not empty."""
    last = max((at for at, (text, _) in enumerate(row) if text), default=0)
    for at, (text, style) in enumerate(row[: last + 1]):
        yield text, style
        if at < last:
            yield " " * (widths[at] - cell_len(text) + 2), ""


def _styled(cell: Cell) -> tuple[str, str]:
    return (cell, "") if isinstance(cell, str) else cell
