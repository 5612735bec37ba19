"""Commands that show a fleet and explain it, with a kubeconfig alone. They read; they change nothing.

- ``arguments``, ``command``: the command lines, and their steps
- ``picture``: reads the objects, and names the rights that are missing
- ``facts``: what the objects say, in the words that the other modules need
- ``status``, ``cables``, ``topology``, ``svg``, ``why``, ``top``, ``events``, ``logs``: one view each, pure
- ``page``: tables and text for a terminal
"""
