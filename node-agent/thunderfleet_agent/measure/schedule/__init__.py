"""schedule: TODO one line a module."""
