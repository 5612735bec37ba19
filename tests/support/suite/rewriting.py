"""Rewrites the assertions of test files once, before several workers import them.

pytest rewrites a test file when it is imported, and keeps the result beside Python's bytecode. In a new checkout there is
none, and as all workers import the same files in the same order, each of them would rewrite all files: 13 s of a processor.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from _pytest.pathlib import fnmatch_ex


def files_of(config: pytest.Config) -> list[Path]:
    """The test files and conftests in the folders and files that the command line names."""
    names = ["conftest.py", *config.getini("python_files")]
    named = (Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args)
    return sorted({file for path in named for file in _below(path) if any(fnmatch_ex(name, file) for name in names)})


def _below(path: Path) -> Iterator[Path]:
    return path.rglob("*.py") if path.is_dir() else iter([path] if path.suffix == ".py" else [])


def rewrite_once(config: pytest.Config, files: Iterable[Path]) -> list[Path]:
    """Rewrites those files whose result is not kept yet, one process for each processor. Returns these files.

    Does nothing if bytecode is not kept, or if pytest does not rewrite assertions.
    """
    if sys.dont_write_bytecode or config.getoption("assertmode") != "rewrite":
        return []
    missing = [file for file in files if rewrite._read_pyc(file, _kept(file)) is None]
    processes = os.cpu_count() or 1
    # Large files are close to each other, so each process gets every n-th.
    shares = [share for at in range(processes) if (share := missing[at::processes])]
    started = [multiprocessing.get_context("fork").Process(target=_rewrite, args=(config, share)) for share in shares]
    for process in started:
        process.start()
    for process in started:
        process.join()
    return missing


def _kept(file: Path) -> Path:
    return rewrite.get_cache_dir(file) / (file.name.removesuffix(".py") + rewrite.PYC_TAIL)


def _rewrite(config: pytest.Config, files: Sequence[Path]) -> None:
    for file in files:
        try:
            found, code = rewrite._rewrite_test(file, config)
        except SyntaxError:
            # The worker that imports it reports it.
            continue
        if rewrite.try_makedirs(rewrite.get_cache_dir(file)):
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, found, _kept(file))
