"""The parts that commands share: flags, recipes, errors, output folder, workers."""
