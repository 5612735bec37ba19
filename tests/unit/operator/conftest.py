"""Fixtures of the operator's tests."""

from collections.abc import Callable

import pytest

from tests.unit.operator.world import GIB, Json, World, tiny_model


@pytest.fixture
def world() -> World:
    """Two Studios with one cable and a mini. Each Studio has memory for half of the model."""
    found = World()
    found.mac("studio-1", "10.0.0.1", 6 * GIB)
    found.mac("studio-2", "10.0.0.2", 6 * GIB)
    found.mac("mini", "10.0.0.3", 2 * GIB)
    found.cable("studio-1", "studio-2")
    return found


@pytest.fixture
def make_model() -> Callable[..., Json]:
    """Makes a model of a NodeProfile."""
    return tiny_model
