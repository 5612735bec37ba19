"""worker: TODO one line a module."""
