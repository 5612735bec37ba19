"""Copies of models from Mac to Mac.

A *way* is a network path to another Mac: a cable, or an address on the LAN.

controller  starts and stops transfers, and reports their progress
transfer    fetches one model over several connections at once
arriving    a large file that arrives: chunks on disk, hash of the whole
failures    which ways and Macs are not used for a while; pure
ways/       the ways to another Mac, and connections over them
server      answers other agents, one thread per connection
board       what has not been fetched yet, and what each connection fetches next; pure
shelf       the files of the model store that other Macs can fetch from this one
rates       progress: bytes per second, time left, main source; pure
wire        requests and answers between two agents, with bounds; pure
chunks      the pieces of a file, and their hashes; pure
"""
