"""Responses of ``/v1/models``. Pure."""

from typing import Any


def model(name: str, created: int, context_tokens: int) -> dict[str, Any]:
    """``GET /v1/models/{id}``. ``created`` is in seconds since 1970; ``max_model_len`` is vLLM's name for the context."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "thunderfleet",
        "root": name,
        "parent": None,
        "max_model_len": context_tokens,
    }


def models(name: str, created: int, context_tokens: int) -> dict[str, Any]:
    """``GET /v1/models``."""
    return {"object": "list", "data": [model(name, created, context_tokens)]}
