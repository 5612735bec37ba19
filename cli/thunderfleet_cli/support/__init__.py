"""``thunderfleet support``: an archive with logs, objects and versions, without secrets.

arguments  the command line
command    collects from a cluster and writes the archive
requests   which objects and logs are collected (pure)
redact     removes secrets from objects and texts (pure)
thismac    what is installed on this Mac
tail       the end of a log
archive    a tar.gz with a size limit
"""
