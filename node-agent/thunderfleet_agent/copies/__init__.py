"""Copies of models from Mac to Mac.

controller  starts and stops transfers as they are wanted, and reports them
transfer    fetches one model over several connections at once
arriving    a large file that arrives: chunks on disk, hash of the whole
failures    which ways and Macs are not used for a while; pure
connection  one connection to another agent
tls         TLS of a client that reads much
server      answers other agents, one thread per connection
board       what is still to fetch, and what each connection fetches next; pure
shelf       what this Mac gives to others, from its model store
paths       the ways to another Mac, best first; pure
pace        limits the rate of a way; pure
rates       progress: bytes per second, time left, main source; pure
wire        requests and answers between two agents, with bounds; pure
chunks      the pieces of a file, and their hashes; pure
"""
