"""OpenAI's format. Pure.

requests   request bodies; runs in the intake process
responses  response bodies
"""
