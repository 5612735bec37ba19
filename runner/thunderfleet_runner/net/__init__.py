"""Connections between the pods of a group.

control       the control port: state, drain, join, relay
join          how a member connects to rank 0
connection    one end of a connection between supervisors
peers         messages between supervisors
relay         hops of the ring without a Thunderbolt cable
socket_owner  which process has a TCP connection
jaccl         JACCL's variables, files and exchange of connection data
ports         the next free port of a rank's block
"""
