"""Decisions in plain NumPy: which channels to mask and when, and plans of runs."""
