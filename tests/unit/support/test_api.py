"""What tests read from the API server instead of asking kubectl."""

import pytest

from tests.support.api import path_of


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("np", "/apis/thunderfleet.io/v1alpha1/nodeprofiles"),
        ("node studio-1", "/api/v1/nodes/studio-1"),
        ("pods", "/api/v1/namespaces/default/pods"),
        ("pods -A", "/api/v1/pods"),
        ("pods -n a -l x=y,z", "/api/v1/namespaces/a/pods?labelSelector=x%3Dy%2Cz"),
        ("events --field-selector reason=Moved -n a", "/api/v1/namespaces/a/events?fieldSelector=reason%3DMoved"),
        ("lease one -n kube-node-lease", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/one"),
        ("md tiny -n a", "/apis/thunderfleet.io/v1alpha1/namespaces/a/modeldeployments/tiny"),
        ("md tiny --subresource=scale", None),
        ("pods,secrets", None),
        ("csr", None),
    ],
)
def test_the_path_that_kubectl_get_reads(words: str, path: str | None) -> None:
    assert path_of(*words.split()) == path
