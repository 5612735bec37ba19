"""Why a request has no placement, as messages that say what to buy, plug in or switch on.

For each transport the search runs once more with relaxed rules: every two Macs count as joined, at a cost for each hop that is
missing or unusable. The cheapest set is the near miss, and its message names the missing links or the missing memory.

explanation  the whole answer: near misses, a reason for every Mac, the message
transports   near misses of one transport
recruiting   near misses with Macs that cannot take part but could
shortage     near misses that lack memory
relaxed      the search with relaxed rules
obstacles    what hops and Macs lack, and the cost of changing it
miss         near misses with their costs, and lists of names and texts
"""
