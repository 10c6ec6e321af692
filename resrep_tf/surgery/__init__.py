"""Exact rewriting of models: what can go, and the narrower copy."""
