"""The links of one Mac, from a CRD of this version and of an earlier one."""

import asyncio
from typing import Any

import pytest
from thunderfleet_crds.names import FIELDS_END, end_label
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_lib.kube.fields import with_value


def link(one: str, other: str, *labelled: str) -> dict[str, Any]:
    spec = {"a": {"node": one, "port": 1}, "b": {"node": other, "port": 1}}
    return {"metadata": {"name": f"{one}--{other}", "labels": {end_label(node): "" for node in labelled}}, "spec": spec}


class Server(Kube):
    """Lists by field, if the CRD can, and by label."""

    def __init__(self, selectable: bool, *links: dict[str, Any]) -> None:
        self._selectable, self._links = selectable, links

    async def list(self, path: str, **query: object) -> tuple[list[dict[str, Any]], str]:
        if "labelSelector" in query:
            return [one for one in self._links if query["labelSelector"] in one["metadata"]["labels"]], "1"
        if not self._selectable:
            raise ApiError(400, "BadRequest", "field label not supported")
        field, _, node = str(query["fieldSelector"]).partition("=")
        return [one for one in self._links if one["spec"][field.split(".")[1]]["node"] == node], "1"


@pytest.mark.parametrize("selectable", [True, False])
def test_a_label_that_names_another_mac_counts_for_nothing(selectable: bool) -> None:
    """Any agent can create links between its Mac and others that do not exist, with the label of any Mac."""
    forged = link("liar", "nobody", "victim")
    server = Server(selectable, link("victim", "x", "victim", "x"), link("b", "victim", "b", "victim"), forged)

    def names(node: str) -> list[str]:
        found = asyncio.run(with_value(server, "links", FIELDS_END, node, end_label(node)))
        return [one["metadata"]["name"] for one in found]

    assert names("victim") == ["b--victim", "victim--x"] and names("stranger") == []
