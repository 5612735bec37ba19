"""Figures of the whole line, each with both of its sides in one run: ``make bench``, or ``python -m tests.bench``.

Absolute seconds depend on the machine and on what else it does; ratios of two things done in the same minute much less so.
Every figure that the project has promised carries its bound here, and the table says whether it holds.
"""
