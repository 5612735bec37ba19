"""Where pods find what the operator mounts: plan, keys and model of a runner, store and token of a fetcher.

These are names only, so that a command line with these defaults needs no Pydantic.
"""

PLAN_KEY = "plan.json"
"""The key of the plan in its ConfigMap, and the name of the file."""
PLAN_FOLDER = "/etc/thunderfleet/plan"
"""Mount path of the plan's ConfigMap in a runner pod."""
KEYS_FOLDER = "/etc/thunderfleet/keys"
"""Mount path of the group's Secret in a runner pod: ``tls.crt`` and ``tls.key`` (PEM)."""
API_KEY_FOLDER = "/etc/thunderfleet/api-key"
"""Mount path of the Secret ``spec.server.apiKeySecret``; each value in it is an accepted key."""
MODEL_FOLDER = "/model"
"""Mount path of the model's folder (a hostPath) in a runner pod."""
STORE_FOLDER = "/store"
"""Mount path of the Mac's model store in a pod that downloads."""
STAGING_FOLDER = "/staging"
"""Mount path of the folder in which the pod leaves files, each under its hash once it is complete."""
TOKEN_FOLDER = "/token"
"""Mount path of the Secret with the hub's token in a pod that reads from the hub."""
