"""How much memory the GPU of a Mac may use."""

import subprocess
import sys

import pytest
from thunderfleet_lib.host.gpu_memory import COMMAND, gpu_memory_limit, parse
from thunderfleet_lib.host.parsing import ParseError

GIB = 1024**3


@pytest.mark.parametrize(
    ("memory", "limit", "metal", "expected"),
    [
        (128 * GIB, 0, 115_448_725_504, 115_448_725_504),
        (128 * GIB, 100 * 1024, 115_448_725_504, 115_448_725_504),
        (128 * GIB, 0, 129 * GIB, 128 * GIB),
        (512 * GIB, 0, None, 384 * GIB),
        (512 * GIB, 0, 0, 384 * GIB),
        (48 * GIB, None, None, 36 * GIB),
        (36 * GIB, 0, None, 24 * GIB),
        (24 * GIB, 0, None, 16 * GIB),
        (64 * GIB, 60 * 1024, None, 60 * GIB),
        (64 * GIB, 999_999, None, 64 * GIB),
    ],
)
def test_what_the_gpu_may_use(memory: int, limit: int | None, metal: int | None, expected: int) -> None:
    assert gpu_memory_limit(memory, limit, metal) == expected


def test_the_command_prints_a_number() -> None:
    said = subprocess.run(COMMAND, capture_output=True, text=True, timeout=60, check=True)
    assert parse(said.stdout) >= 0


def test_the_command_imports_little_but_mlx() -> None:
    code = "import sys; from thunderfleet_lib.host import mlx_memory; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(said.stdout.split()) & {"asyncio", "importlib.abc", "mlx", "pathlib", "ssl", "subprocess", "tempfile"} == set()


@pytest.mark.parametrize("text", ["", "null", "-1", "1.5", "1" * 19, "12 34"])
def test_anything_but_a_number_is_an_error(text: str) -> None:
    with pytest.raises(ParseError, match="instead of a number of bytes"):
        parse(text)
