"""What a fleet looks like: for the commands that show it, and for the page.

facts     what the objects say, in the words that the other modules need
follow    what a ModelDeployment waits for
problems  what is wrong with a ModelDeployment, a Mac or a cable, in a sentence
health    whether something is a fault, work in progress or well
renewals  who renews its Lease, and whose clock is wrong
components  whether scheduler, controller manager and operator work
why       the way from a ModelDeployment to the first cause of its state
details   conditions and causes, for what somebody has selected
live      the fleet as it changes, as entities of the page
web       the page's HTTP server
"""
