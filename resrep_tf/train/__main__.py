"""Starts the command."""

from resrep_tf.cli.flagset import run
from resrep_tf.train import pipeline

run(pipeline.run)
