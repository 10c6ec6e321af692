"""`python -m resrep_tf.evaluate`: the accuracy of a model, however it is stored."""
