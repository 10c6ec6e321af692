"""Decisions, in plain NumPy: which channels go, when, and what to expect of a run."""
