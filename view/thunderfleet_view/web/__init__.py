"""The page's HTTP server.

server    paths, the stream of changes, limits
chat      passes a chat on to a model, and its answer back
sessions  the token that opens a session, once
assets    the page's files, read once
guard     which requests are refused, and the headers of every response
static    the files, built from view/page by `make page`
"""
