"""Names by which clients may call the served model. Pure."""

from thunderfleet_runner.api.errors import ApiError, refused
from thunderfleet_runner.api.request.fields import Fields
from thunderfleet_runner.intakeprotocol import ModelLimits


def check(fields: Fields, limits: ModelLimits) -> None:
    """Raises ApiError if the body names another model. A body may leave the name out: only one model is served here."""
    model = fields.take("model", limits.model)
    if not isinstance(model, str) or not model:
        raise refused("model", f"model must be a string: the name of the served model, {limits.model}")
    if model != limits.model and model not in limits.names:
        raise ApiError(
            404,
            f"the model {model[:200]!r} is not served here; use {limits.model!r}",
            param="model",
            code="model_not_found",
        )
