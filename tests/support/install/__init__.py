"""What `thunderfleet` installs on a Mac, and upgrades of it.

installed  a recorded Mac on which `thunderfleet` installs
wheel      the wheel, installed without the checkout
upgrading  a newer version to upgrade to, and a client that sends requests meanwhile
"""
