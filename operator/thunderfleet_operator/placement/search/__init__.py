"""The search for the best sets of Macs that take a group.

candidates   all placements that a request allows, the best first
fitting      whether a set of Macs takes the group, and in which order of ranks
rank_order   the best order of ranks over a set, where the order decides
sets         all sets of one size that a transport can join
growing      cliques and ring sets grown Mac by Mac
walking      rings walked hop by hop
cycles       the best ring over a given set
roots        where sets begin, the most promising first
shortlist    the best arrangements found so far
hop_graphs   the separate graphs in which groups can form, for every cohort and transport
hop_graph    Macs that may form a group, with the hops between them
budget       the step budget
"""
