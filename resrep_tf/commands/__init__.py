"""What the commands `train`, `evaluate`, `convert` and `explain` are made of.

Each command is a function of its parsed flags; `python -m resrep_tf.train` and the
others only start it. Nothing in the library imports this package.
"""
