"""Reads model files that may be damaged, of another kind or hostile."""
