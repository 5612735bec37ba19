"""Images that are pulled from OCI registries: fetched, verified, unpacked into folders, kept and deleted.

puller      pulls what containers need: one at a time for each image, with back-off and events
collector   deletes unused images while the disk is full
doomed      which ones; pure
pull        one pull: from a name to an unpacked image
registry/   manifests and layers from a registry, and the names of images
store       the images on this disk, by digest
unpacking   runs the process that unpacks
unpack      that process: layers into a folder
layer       one layer as bounded bytes
settings    the configuration of images
errors      why an image cannot be pulled
"""
