"""A probe between two Macs, as an exchange between their two agents.

probe_lock        one Mac takes part in at most one probe at a time
messages          the messages of a session, with bounds
steps             checks a message against the step of the session
channel           a WebSocket between two agents, with limits
socket_session    round trip and throughput over plain sockets, both sides
stream_listener   accepts the streams of one throughput test that show its token
streams           moves bytes and echoes over these streams
rates             computes throughput and round trip from arrival times; pure
pair_session      a group of two ranks over one cable, both sides
lease             reserves this Mac for an interactive measurement
result            what a session found, and the errors that end one
"""
