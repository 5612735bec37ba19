"""What the router decides. Pure: times and facts are arguments.

names     which ModelDeployment a request means, and which ones a caller may use
shown     the live page: names of hosts, tokens, what the holder of a key sees
callers   who sends a request
catalog   ModelDeployments, their groups and keys
asked     what a body asks for
balance   which group gets a request
prefixes  which group has the beginning of a prompt
limits    limits of keys
suspects  requests that were in flight when groups failed
"""
