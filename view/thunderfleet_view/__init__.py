"""What a fleet looks like: for the commands that show it, and for the page.

facts     what the objects say, in the words that the other modules need
follow    what a ModelDeployment waits for
problems  what is wrong with a ModelDeployment, a Mac or a cable, in a sentence
health    whether something is a fault, work in progress or well
renewals  who renews its Lease, and whose clock is wrong
components  whether scheduler, controller manager and operator work
why       the way from a ModelDeployment to the first cause of its state
fleet     the Macs, cables and models of the page, kept current object by object
details   conditions and causes, for what somebody has selected
feed      sends changes to browsers, bounded
leases    reads by what the control plane, kubelets and agents show that they work
watch     keeps the fleet current from what the API server sends
rates     live rates of cables, from two readings of an agent's counters
meter     asks agents for these counters while somebody looks
web       the page's HTTP server
"""
