"""Figures of models and images that are copied, fetched and pulled.

copies     models from Mac to Mac
copymac    one Mac of these
weights    the hub, ranks beside a copy, and what loading from a neighbour could save
weightmac  what runs on a Mac for these
images     images over a cable, against curl of their layers
"""
