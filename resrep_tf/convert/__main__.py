"""Starts the command."""

from resrep_tf.cli.running import run

run("resrep_tf.convert.command")
