"""Models to serve, and reference answers.

tinymodel   a tiny random model in the layout of mlx-lm
demo_model  a small trained model that answers in words, for the demo
hub         a Hugging Face Hub, with the faults that can occur there
reference   the answers of one process of mlx-lm
"""
