"""The format of ``--help``: a default is shown unless it is empty or the text already names it."""

import argparse

EMPTY = (None, False, "", "{}")


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds ``(default: …)`` to the help text of options with a default that tells something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        if action.default in EMPTY or action.default == [] or "default" in text:
            return text
        return super()._get_help_string(action)
