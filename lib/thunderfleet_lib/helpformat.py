"""The format of ``--help``: a default is shown unless it is empty or the text already names it."""

import argparse
import textwrap

EMPTY = (None, False, "", "{}")


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds ``(default: …)`` to the help text of options with a meaningful default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        if action.default in EMPTY or action.default == [] or "default" in text:
            return text
        return super()._get_help_string(action)

    # If a name such as mlx-community/… were broken at its hyphen, it could not be copied.

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        words = " ".join(text.split())
        return textwrap.fill(words, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
