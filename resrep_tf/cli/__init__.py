"""The parts that all commands share: flags, recipes, errors, output folder, workers."""
