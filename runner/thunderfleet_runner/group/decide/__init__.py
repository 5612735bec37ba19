"""What a group does next, from what its ranks and supervisors report. Pure.

attempts      the state machine of attempts
events        its events and actions
rendezvous    which supervisors may join
evidence      what the ranks report about their models and Macs
verification  whether the group has passed its checks
answers       compares the answer to the test prompt with earlier ones
stall         when a group makes no progress
status        the group's state for users
"""
