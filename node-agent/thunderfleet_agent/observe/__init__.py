"""Observes this Mac.

collector  runs the commands and keeps the latest facts
facts      all observations at one moment, as one value
models     models on disk
kept_sizes  their sizes, kept for the next process
panics     the newest report of a kernel panic
parsers    parsers of command output; pure
sensors    power, temperature, memory, disk and traffic, while the agent is scraped
"""
