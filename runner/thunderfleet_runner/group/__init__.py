"""A group of pods that serve one model: how it forms, fails and recovers.

leader      rank 0: feeds the state machine, carries out its actions
follower    the other ranks: join rank 0, obey its orders
decide      what happens next: attempts, stalls, checks, what users see; pure
history     state that survives a restart of rank 0's container
metrics     the group's state for Prometheus
member      carries out orders of the leader and reports results, on every rank
slot        the rank's process, and the spare for the next attempt
launch      environment, files and first message of a rank's process
heartbeats  whether the rank's process is alive
kill_guard  no rank starts while a killed one's memory is still wired
"""
