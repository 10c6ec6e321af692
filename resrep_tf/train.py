"""`python -m resrep_tf.train`: from a base model to an exported pruned one."""

if __name__ == "__main__":
    from resrep_tf.commands.flagset import run
    from resrep_tf.commands.pipeline import run as train

    run(train)
