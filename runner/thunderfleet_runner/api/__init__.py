"""The group's HTTP API, on rank 0.

=========  ===================================================================
gateway    the HTTP server
openai     OpenAI's request and response bodies; pure
admission  how many requests run and wait; pure
service    requests on their way to the rank's process and back
benchmark  measures the group's rates while it is idle
canary     a request now and then, to notice a group that hangs
=========  ===================================================================
"""
