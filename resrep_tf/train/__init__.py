"""`python -m resrep_tf.train`: from a base model to an exported, pruned one."""
