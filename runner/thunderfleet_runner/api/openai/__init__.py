"""OpenAI's format. Pure.

chat              bodies of chat completions
completion        bodies of completions
responses         bodies of the Responses API
chat_writer       responses of the first two
responses_writer  responses of the third
models            lists of models
"""
