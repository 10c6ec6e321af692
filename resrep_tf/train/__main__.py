"""Starts the command."""

from resrep_tf.cli.flagset import run

run("resrep_tf.train.pipeline")
