"""Lets ``mlx.core`` take as long to read weights as a Mac takes for those of a large model: recorded Macs serve tiny ones."""

import json
import time
from types import ModuleType
from typing import Any


def replace(module: ModuleType, settings: str) -> None:
    """Has the first call of ``load`` wait. ``settings``: a JSON file with ``seconds``."""
    core: Any = module
    with open(settings, encoding="utf-8") as file:
        left = [float(json.load(file)["seconds"])]
    load = core.load

    def slowly(*arguments: Any, **options: Any) -> Any:
        if left:
            time.sleep(left.pop())
        return load(*arguments, **options)

    core.load = slowly
