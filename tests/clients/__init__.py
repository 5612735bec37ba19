"""Clients that people use, as scripts of their own with packages of their own: they do not fit beside the project's.

requirements.txt   the Python packages, with hashes, and Node for the AI SDK; made from requirements.in by ``uv pip compile``
package-lock.json  the Node packages
langchain.py, litellm.py, llm.py, ai_sdk.mjs   one client each; the arguments are the base URL and the API key

Each script prints a JSON object: what was tried, and "works" or what went wrong.
``tests/unit/runner/api/clients/test_clients.py`` runs them in ``make soak``.
"""
