"""Rewrites models exactly: which channels can go, and how to copy without them."""
