"""Shrinking: rebuilds a wrapped model narrower during training."""
