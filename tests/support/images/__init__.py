"""Images, and the registries that have them.

fleetimage    images of Thunderfleet for Macs
distribution  CNCF distribution, built from its Go module and filled over its API
registry      an OCI registry that can send wrong content, break off and slow down
oci           an OCI image layout, read as a container runtime reads it
"""
