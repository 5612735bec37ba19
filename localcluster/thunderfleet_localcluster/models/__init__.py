"""Models to serve and what to compare answers with.

tinymodel   a tiny random model in the layout of mlx-lm
demo_model  a small trained model that answers in words, for the demo
hub         a Hugging Face Hub, with everything that can go wrong there
reference   what one process of mlx-lm generates
"""
