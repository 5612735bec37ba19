"""publish: TODO one line a module."""
