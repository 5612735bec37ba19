"""What a rank sends for a request.

answer   one request's tokens as messages
vectors  one request's vectors as a message
stops    stop strings in streamed text; pure
"""
