"""Tables and text for a terminal: colored there, plain in a pipe."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

GOOD, BAD, DOUBTFUL, QUIET = "green", "red", "yellow", "dim"

Cell = str | tuple[str, str]
"""A text, or a text and its style."""
Rows = Sequence[Sequence[Cell]]


class Page:
    """Writes to standard output, or to ``console``."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)

    def line(self, text: str = "", style: str = "") -> None:
        """A line. Nothing in it is markup."""
        self._console.print(Text(text, style))

    def cells(self, *cells: Cell) -> None:
        """A line of several styles."""
        self._console.print(Text.assemble(*cells))

    def table(self, columns: Sequence[str], rows: Rows) -> None:
        """A table like those of kubectl: as wide as its contents, regardless of the terminal's width."""
        cells = [[(column, "bold") for column in columns], *([_styled(cell) for cell in row] for row in rows)]
        widths = [max(cell_len(row[at][0]) for row in cells) for at in range(len(columns))]
        for row in cells:
            last = max((at for at, (text, _) in enumerate(row) if text), default=0)
            line = Text()
            for at, (text, style) in enumerate(row[: last + 1]):
                line.append(text, style)
                if at < last:
                    line.append(" " * (widths[at] - cell_len(text) + 2))
            self._console.print(line)


def _styled(cell: Cell) -> tuple[str, str]:
    return (cell, "") if isinstance(cell, str) else cell
