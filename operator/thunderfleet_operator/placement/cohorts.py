"""Which Macs can work together: their ranks refuse each other unless they hold the same model and run the same MLX.

To require that the Macs of a group share something else, add it to ``fleet.Mac`` (set in ``observe.fleet``) and to the key of a
cohort here, and report in ``explain.obstacles`` why a Mac is in another cohort.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from thunderfleet_operator.placement.eligibility import wanted_model
from thunderfleet_operator.placement.inputs.fleet import Mac
from thunderfleet_operator.placement.inputs.model import ModelFacts
from thunderfleet_operator.placement.inputs.request import Request
from thunderfleet_operator.placement.memory import Needs, figures


@dataclass(frozen=True, slots=True)
class Cohort:
    """Eligible Macs with the same model content in the same folder and the same versions of MLX and mlx-lm."""

    needs: Needs
    mlx: tuple[str, str]
    """Versions of MLX and mlx-lm."""
    macs: Mapping[str, Mac]

    @property
    def model(self) -> ModelFacts:
        """The model that all of them hold."""
        return self.needs.model

    def among(self, names: Collection[str]) -> "Cohort":
        """The members of the cohort with these names."""
        return Cohort(self.needs, self.mlx, {name: mac for name, mac in self.macs.items() if name in names})

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key."""
        return (self.model.path, self.mlx, self.model.revision or "", self.model.bytes, min(self.macs, default=""))


def mlx_versions(mac: Mac) -> tuple[str, str]:
    """Versions of MLX and mlx-lm, empty if unknown."""
    return mac.mlx_version or "", mac.mlx_lm_version or ""


def cohorts(macs: Mapping[str, Mac], request: Request) -> list[Cohort]:
    """All cohorts among these Macs. A Mac with several folders of the model is in several of them."""
    found: dict[tuple[ModelFacts, tuple[str, str]], dict[str, Mac]] = {}
    # Equal facts are usually the same object; comparing them in full is expensive.
    known: dict[tuple[int, str, str], dict[str, Mac]] = {}
    usable: dict[int, list[ModelFacts]] = {}
    for name, mac in macs.items():
        models = usable.get(id(mac.models))
        if models is None:
            models = usable[id(mac.models)] = [model for model in wanted_model(mac, request) if model.usable]
        for model in models:
            mlx = mlx_versions(mac)
            quick = (id(model), *mlx)
            if quick not in known:
                known[quick] = found.setdefault((model, mlx), {})
            known[quick][name] = mac
    needs: dict[tuple[object, ...], Needs] = {}
    made = []
    for (model, mlx), members in found.items():
        key = figures(model)
        if key not in needs:
            needs[key] = Needs(model, request.memory)
        made.append(Cohort(needs[key].alike(model), mlx, members))
    return sorted(made, key=lambda cohort: cohort.order)
