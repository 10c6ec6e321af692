"""A teacher: what a trained model knows beyond the labels, for every method."""
