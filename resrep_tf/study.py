"""`python -m resrep_tf.study`: the paper's comparisons, each by one command."""

if __name__ == "__main__":
    from resrep_tf.commands.flagset import run
    from resrep_tf.commands.study import run as study

    run(study)
