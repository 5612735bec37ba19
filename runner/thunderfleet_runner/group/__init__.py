"""A group of pods that serve one model: how it forms, fails and recovers.

leader      rank 0: feeds the state machine, carries out its actions
follower    the other ranks: join rank 0, obey its orders
attempts    the state machine of attempts; pure
events      its events and actions; pure
rendezvous  which supervisors may join; pure
evidence    what the ranks tell of their model and their Macs; pure
answers     the answer to the test prompt, against earlier ones; pure
stall       when a group makes no progress; pure
status      what people read of the group's state; pure
verification  whether the group has passed its checks; pure
history     what survives a restart of rank 0's container
metrics     the group's state for Prometheus
member      one rank's orders and reports, on every rank
slot        the rank's process, and the spare for the next attempt
launch      what the rank's process is given at its start
heartbeats  whether the rank's process is alive
kill_guard  no rank starts while a killed one's memory is still wired
"""
