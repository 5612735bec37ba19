"""``thunderfleet local``: local clusters with recorded Macs.

arguments    the commands below it and their arguments
commands     what they do
status_view  the text of ``thunderfleet local status``
"""
