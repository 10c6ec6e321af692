"""Distillation: a model in training also learns from a trained one, its teacher."""
