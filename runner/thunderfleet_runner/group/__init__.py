"""A group of pods that serve one model: how it forms, fails and recovers.

==========  ==================================================================
attempts    the state machine of attempts; pure
rendezvous  who may join which rank; pure
history     what survives a restart of rank 0's container
leader      rank 0: feeds the state machine, carries out its actions
follower    the other ranks: join rank 0, obey its orders
member      one rank's process, on every rank
metrics     the group's state for Prometheus
==========  ==================================================================
"""
