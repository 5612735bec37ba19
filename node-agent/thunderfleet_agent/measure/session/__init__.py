"""session: TODO one line a module."""
