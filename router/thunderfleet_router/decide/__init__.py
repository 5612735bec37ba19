"""What the router decides. Pure: times and facts are arguments.

names     which ModelDeployment a request means, and which ones a caller may use
shown     the live page: host names, tokens, contents for the holder of a key
callers   the sender of a request
catalog   ModelDeployments, their groups and keys
asked     the contents of a request's body
balance   which group gets a request
prefixes  which group has the beginning of a prompt
limits    limits of keys
suspects  requests that were in flight when groups failed
"""
