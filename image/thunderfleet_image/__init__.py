"""Builds the container image without a container daemon: operator and router for Linux nodes, all programs of pods for Macs.

``make image`` runs it. For Linux, Python comes from Debian's packages, which are unpacked and never run, so one machine builds
for all platforms; Macs bring their own Python. Two builds of one commit have the same bytes. This package is part of the
repository, not of the wheel.

__main__    arguments
build       from packages and wheels to a folder with the image
apt         Debian's packages: versions, downloads, hashes
debian      the files of a Debian package, without documentation
packages    the files of Python packages, from wheels with hashes
sbom        the software bill of materials (CycloneDX format)
layout      an OCI image layout: layers, configuration, index
lock        image/debian.lock: versions and hashes of Debian's packages
recipe      contents of the image for Linux: packages, programs, user, environment
mac         contents of the image for Macs
tree        files of a layer, and their reproducible archive
errors      errors that users can fix
"""
