"""`python -m resrep_tf.evaluate`: the accuracy of a model in any file format."""
