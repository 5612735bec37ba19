"""The chart and the examples: in the folder ``shipped`` of an installed wheel, else in the checkout."""

from pathlib import Path

from thunderfleet_localcluster.errors import LocalClusterError

_PACKAGE = Path(__file__).resolve().parent


def shipped(name: str, roots: tuple[Path, ...] = (_PACKAGE / "shipped", _PACKAGE.parents[1])) -> Path:
    """The file or folder ``name``, such as ``charts/thunderfleet``. Raises LocalClusterError."""
    found = next((root / name for root in roots if (root / name).exists()), None)
    if found is None:
        raise LocalClusterError(f"{name} is missing in {roots[0]}; install thunderfleet again")
    return found


def shipped_in(python: Path, name: str) -> Path:
    """The same file in the installation of the Python in the folder ``python``, or if that has none, in this one.

    Raises LocalClusterError.
    """
    places = python.glob(f"lib/python3.*/site-packages/thunderfleet_localcluster/shipped/{name}")
    return next(places, None) or shipped(name)
