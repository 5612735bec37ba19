"""The module ``mlx_lm.generate``; mlx-lm has a function of the same name, which hides it from a plain import."""

import importlib
from typing import Any

generate: Any = importlib.import_module("mlx_lm.generate")
