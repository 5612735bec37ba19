"""Why a request has no placement, and the smallest change that would give it one.

- ``near_misses``  the closest alternatives, by transport, and the message made of them
"""
