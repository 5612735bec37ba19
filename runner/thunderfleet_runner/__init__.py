"""One pod of a served model: a supervisor that never freezes, and the rank process it owns.

``supervisor`` and everything it imports stays free of MLX, transformers and tokenizers; ``rank`` is the child that has them.
"""
