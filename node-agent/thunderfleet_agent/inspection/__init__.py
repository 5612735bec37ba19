"""``thunderfleet-agent inspect``: what the agent would publish, without a cluster.

page      human-readable text
problems  the problems that this Mac can detect locally, with their fixes
"""
