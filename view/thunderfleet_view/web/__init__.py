"""The page's HTTP server.

server     paths and limits
chat       passes a chat on to a model, and its answer back
sessions   the token that opens a session, once
responses  files, JSON, refusals, and the stream of changes
assets     the page's files, read once
guard      which requests are refused, and the headers of every response
static     the files, built from view/page by `make page`
"""
