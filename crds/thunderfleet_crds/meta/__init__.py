"""What several kinds consist of.

apimodel     the base of all kinds: reading and writing objects of the API server
conditions   conditions: the type, reading and setting them
fields       types of fields with their bounds, figures as strings
podmetadata  labels and annotations that users put on pods, and those of Kueue's pod groups
"""
