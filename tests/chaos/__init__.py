"""The fault suite: what a seed decides is broken on a local cluster, at every stage of a deployment's life."""
