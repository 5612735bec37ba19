"""The agent of one Mac: publishes its NodeProfile and its end of each ThunderboltLink, and measures GPU and links.

Modules and packages, each using only those below it (cli and agent put everything together):

__main__    `python -m thunderfleet_agent`
cli         command line
agent       `run`: puts the parts together
rounds      the agent's loop: observe, dial, publish
server      HTTP servers for other agents and for Prometheus
metrics     Prometheus metrics
inspection  `inspect`: what would be published, and the problems
weights     this Mac's model store: the models that ModelCaches assign to it
copies      copies of models from and to other Macs
measure     probes of GPU, memory and links; `measure`
peers       identity, dials to other agents, reachability
publish     writes to the API server
derive      profile, conditions and links from the observed facts; pure
observe     commands of macOS, their parsers, and models on disk
"""
