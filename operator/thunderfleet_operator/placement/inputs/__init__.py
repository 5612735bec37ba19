"""What the planner is asked, and about which fleet and model.

request  the question
fleet    Macs, cables and what they have reached
blocks   parts of a fleet that stay connected without any one of their Macs
model    what a model needs
"""
