"""Starts the command."""

from resrep_tf.cli.flagset import run
from resrep_tf.evaluate import command

run(command.run)
