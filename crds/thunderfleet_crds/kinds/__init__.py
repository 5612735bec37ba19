"""The resources of the API, each with its ``spec`` and ``status``.

modeldeployment  ModelDeployment: a model served across Macs
modelcache       ModelCache: a model that Macs keep on their disks
nodeprofile      NodeProfile: what one Mac is and can do
thunderboltlink  ThunderboltLink: a cable between two Macs
"""
