"""Models to serve and what to compare answers with.

tinymodel  a tiny random model in the layout of mlx-lm
reference  what one process of mlx-lm generates
"""
