"""A Keras model as channels: its calls, its channel spaces and what ties them."""
