"""Tables and text for a terminal: colored there, plain in a pipe."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 240
"""Columns of output that is not a terminal's."""
GOOD, BAD, DOUBTFUL, QUIET = "green", "red", "yellow", "dim"

Cell = str | tuple[str, str]
"""A text, or a text and its style."""
Rows = Sequence[Sequence[Cell]]


class Page:
    """Writes to standard output, or to ``console``."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        if not self._console.is_terminal:
            self._console.width = WIDTH

    def line(self, text: str = "", style: str = "") -> None:
        """A line. Nothing in it is markup."""
        self._console.print(Text(text, style))

    def cells(self, *cells: Cell) -> None:
        """A line of several styles."""
        self._console.print(Text.assemble(*cells))

    def table(self, columns: Sequence[str], rows: Rows) -> None:
        """A table like those of kubectl."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column in columns:
            table.add_column(column, no_wrap=True, overflow="ignore")
        for row in rows:
            table.add_row(*(Text(cell) if isinstance(cell, str) else Text(*cell) for cell in row))
        self._console.print(table)
