"""peers: TODO one line a module."""
