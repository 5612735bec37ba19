"""The agent of one Mac: reads what macOS says of it, and publishes NodeProfile and its own end of each ThunderboltLink.

Read (``host``, ``collect``, ``models``), plan (``derive``, pure), act (``publish``).
"""
