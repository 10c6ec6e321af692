"""`python -m resrep_tf.train`: trains or loads a base, prunes it and exports it."""
