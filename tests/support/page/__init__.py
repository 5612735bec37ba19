"""The live page, and a browser that shows it.

fleetpage    the live page of a fleet without a cluster
browser      headless Chromium
screenshots  pictures of the page, from a real run
"""
