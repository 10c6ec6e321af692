"""Exact rewriting of models: the channels that can go, and the narrower copy."""
