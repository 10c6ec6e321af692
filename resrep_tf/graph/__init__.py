"""A Keras model as channels: its calls, and the spaces of its channels."""
