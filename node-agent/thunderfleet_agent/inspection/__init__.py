"""inspection: TODO one line a module."""
