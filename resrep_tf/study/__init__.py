"""`python -m resrep_tf.study`: the paper's comparisons, each by one command."""
