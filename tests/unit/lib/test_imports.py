"""Imports without garbage collection."""

import gc

import pytest
from thunderfleet_lib.imports import uncollected


def test_nothing_is_collected_meanwhile_and_what_exists_is_left_alone_later() -> None:
    try:
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() and gc.get_freeze_count() > 0
        gc.disable()
        with pytest.raises(ImportError), uncollected():
            raise ImportError
        assert not gc.isenabled(), "as it was"
    finally:
        gc.unfreeze()
        gc.enable()
