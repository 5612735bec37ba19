"""derive: TODO one line a module."""
