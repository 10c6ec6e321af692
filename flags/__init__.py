"""Flagfiles, one per experiment of the paper."""
