"""Helpers that several folders of tests share.

waiting    wait for a condition, with a limit
processes  whether a process runs, or exists at all
https      a TLS client with a certificate of its own
api        reads from the API server without a kubectl process for each
"""
