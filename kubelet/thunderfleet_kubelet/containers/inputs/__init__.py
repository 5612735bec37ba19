"""What a container gets from its spec before it starts.

environment     variables, command and working directory; pure
sources         values from ConfigMaps, Secrets and the downward API; pure
images          image names to folders
own_image       the image of the kubelet's own installation
user            the user and groups of a container
volume_content  the files of ConfigMap, Secret and projected volumes; pure
volumes         volumes as folders, mounts as links
"""
