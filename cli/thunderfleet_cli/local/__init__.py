"""``thunderfleet local``: local clusters with recorded Macs.

arguments    the commands of ``local`` and their arguments
commands     the functions of the commands
status_view  the text of ``thunderfleet local status``
"""
