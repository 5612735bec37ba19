"""The API of Thunderfleet: what every program reads and writes, and nothing that only one of them needs.

Import from the modules (``thunderfleet_crds.modeldeployment``, ...), one a kind; the CRD YAML is generated from them.
"""
