"""What the commands share: flags, recipes, errors, the output folder, workers."""
