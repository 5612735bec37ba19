"""Names that Kubernetes gives to the parts of a kubelet's certificate request."""

import re

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
NODES = "system:nodes"
"""The group of all Nodes."""
NODE_PREFIX = "system:node:"
"""Before the name of a Node in the user name of its kubelet."""
NODE_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""What the API server accepts as the name of a Node."""
