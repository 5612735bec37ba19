"""The state of a fleet in readable form, for the commands that show it and for the page.

facts     values that the other modules read from the objects
follow    what a ModelDeployment waits for
problems  what is wrong with a ModelDeployment, a Mac or a cable, as a sentence
health    whether a state is a fault, work in progress or healthy
renewals  which Leases are renewed, and which clocks are wrong
components  whether scheduler, controller manager and operator work
why       the path from a ModelDeployment to the first cause of its state
details   conditions and causes of a selected entity
live      the fleet as it changes, as entities of the page
web       the page's HTTP server
"""
