"""The page's HTTP server.

server     paths and limits
chat       sends a chat to a model, and returns its answer
sessions   single-use tokens that open a session
responses  files, JSON, refusals, and the stream of changes
assets     the page's files, read once
guard      which requests are refused, and the headers of every response
static     the files, built from view/page by `make page`
"""
