"""``kubectl port-forward``: SPDY streams inside one WebSocket, each pair of streams one TCP connection to a port of the pod.

tunnel   one client: opens and closes its forwarded connections, with bounds
forward  one forwarded connection: copies both ways
frames   SPDY/3.1 frames to values and back; pure
headers  the compressed header blocks of SPDY; pure
"""
