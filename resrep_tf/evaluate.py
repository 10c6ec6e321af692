"""`python -m resrep_tf.evaluate`: accuracy and latency of a model."""

if __name__ == "__main__":
    from resrep_tf.commands.evaluate import run as evaluate
    from resrep_tf.commands.flagset import run

    run(evaluate)
