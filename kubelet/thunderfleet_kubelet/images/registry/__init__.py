"""What comes from OCI registries, and how images are named there.

download    blobs as files: resumed and verified
repository  manifests and blobs of one repository
requests    HTTP requests: redirects, authorization, limits
clients     the HTTP clients, and which addresses they connect to
challenge   what a registry requires before it answers; pure
manifest    manifests and configurations of images; pure
reference   names of images; pure
secrets     user names and passwords in pull secrets; pure
"""
