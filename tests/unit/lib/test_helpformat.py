"""The format of ``--help``."""

import argparse

import pytest
from thunderfleet_lib.helpformat import HelpFormatter

NAME = "mlx-community/Qwen3-30B-A3B-4bit"


@pytest.mark.parametrize("width", range(50, 80))
def test_a_name_with_hyphens_stays_in_one_line(width: int) -> None:
    parser = argparse.ArgumentParser(
        "program",
        description=f"Serves a model, for example as `thunderfleet run {NAME}` does.",
        formatter_class=lambda prog: HelpFormatter(prog, width=width),
    )
    parser.add_argument("--model", help=f"the name of a model, such as {NAME}, as it is in a folder")
    assert parser.format_help().count(NAME) == 2
