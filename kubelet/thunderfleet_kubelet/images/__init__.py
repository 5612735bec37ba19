"""Images that are pulled from OCI registries: fetched, verified, unpacked into folders, kept and deleted.

puller      pulls what containers need: one at a time for each image, with back-off and events
collector   deletes unused images while the disk is full
doomed      which ones; pure
pull        one pull: from a name to an unpacked image
download    blobs as files: resumed and verified
registry    manifests and blobs of one repository
requests    HTTP requests: redirects, authorization, limits
challenge   what a registry requires before it answers; pure
store       the images on this disk, by digest
unpacking   runs the process that unpacks
unpack      that process: layers into a folder
layer       one layer as bounded bytes
manifest    manifests and configurations of images; pure
reference   names of images; pure
secrets     user names and passwords in pull secrets; pure
settings    the configuration of images
errors      why an image cannot be pulled
"""
