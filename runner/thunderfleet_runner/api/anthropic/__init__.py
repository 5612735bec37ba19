"""Anthropic's format. Pure.

messages  bodies of messages, and of the count of their tokens
writer    responses
"""
