"""The machine of a program: commands and their output, files, and protection against other users.

descriptors  how many more files and connections a process can open; raises the limit
gpu_memory  how much memory the GPU of a Mac may use
hostcmd  runs commands of this machine, with limits on time and output
interfaces  addresses of a Mac, from what `route` and `ifconfig` print
mlx_memory  prints how much memory of this Mac the GPU may use, as MLX reports it
parsing  parsers of command output: errors, bounds, checks
privatefiles  files that only their owner reads
privilege  what root may take over from its caller: environment, commands, files
sandbox  where a container finds the volumes of its pod
trees  removes trees of other users, shows the last lines of files
yamltext  YAML that people write, with one kind of error
"""
