"""The version, and nothing else: `setup.py` runs this file on its own."""

__version__ = "0.1.0"
