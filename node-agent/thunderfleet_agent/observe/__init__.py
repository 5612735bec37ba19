"""observe: TODO one line a module."""
