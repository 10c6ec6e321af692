"""Small networks, published ones, and random ones."""
