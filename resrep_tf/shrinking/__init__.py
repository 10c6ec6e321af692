"""Shrinking: from a wrapped model to a narrower one that trains on."""
