"""The model that a command is given: by name or file, its layers and its pixels."""
