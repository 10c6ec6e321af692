"""Starts the command."""

from resrep_tf.cli.flagset import run
from resrep_tf.study import command

run(command.run)
