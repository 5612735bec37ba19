"""A group of pods that serve one model: how it forms, fails and recovers.

leader      rank 0: feeds the state machine, carries out its actions
follower    the other ranks: join rank 0, obey its orders
attempts    the state machine of attempts; pure
events      its events and actions; pure
rendezvous  which supervisors may join; pure
evidence    what the ranks report about their models and Macs; pure
answers     compares the answer to the test prompt with earlier ones; pure
stall       when a group makes no progress; pure
status      the group's state for users; pure
verification  whether the group has passed its checks; pure
history     state that survives a restart of rank 0's container
metrics     the group's state for Prometheus
member      carries out orders of the leader and reports results, on every rank
slot        the rank's process, and the spare for the next attempt
launch      environment, files and first message of a rank's process
heartbeats  whether the rank's process is alive
kill_guard  no rank starts while a killed one's memory is still wired
"""
