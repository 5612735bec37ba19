"""One group of ranks: what becomes of its placement.

lifecycle  one group: keep, drain, place, back off or give up
trouble    why a group cannot go on
cables     what is known to be wrong with the cables of a group
avoided    cables that corrupted data, which are avoided for a while
rollout    which group a changed spec replaces next
"""
