"""``thunderfleet support``: an archive with logs, objects and versions, without secrets.

arguments  the command line
command    collects from a cluster and writes the archive
requests   the list of objects and logs to collect (pure)
redact     removes secrets from objects and texts (pure)
thismac    the installation on this Mac
tail       the end of a log
archive    a tar.gz with a size limit
"""
