"""``thunderfleet-agent inspect``: what the agent would publish, without a cluster.

page      the page for people
problems  the problems that this Mac can see by itself, with their fixes
"""
