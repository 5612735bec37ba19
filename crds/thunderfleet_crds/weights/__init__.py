"""Models as files on the disks of Macs.

parts         parts of a model: which of its files a Mac needs
copies        the state of a model's files on one Mac
quantization  quantization of a repository on a Mac: bits, group size, name of the result
"""
