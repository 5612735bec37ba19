"""Why a request has no placement, as messages that name what to buy, plug in or switch on.

For each transport the search runs once more with relaxed rules: every two Macs count as joined, at a cost for each hop that is
missing or unusable. The cheapest sets are the near misses. Each names everything that its Macs need, and is kept only if the
planner finds a placement once all of that is changed.

explanation  the whole answer: near misses, a reason for every Mac, the message
transports   near misses of one transport: which sets of Macs are worth a closer look
fixes        everything that one set of Macs needs at once
changed      the fleet with these changes, and whether it has a placement
relaxed      the search with relaxed rules
shortage     the smallest memory with which a model can be divided
obstacles    what hops and Macs lack, and the cost of changing it
miss         near misses with their costs, and lists of names and texts
"""
