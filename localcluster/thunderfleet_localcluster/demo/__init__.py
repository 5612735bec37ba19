"""``thunderfleet demo``: the main path from nothing to tokens on recorded Macs.

demo  the steps
"""
