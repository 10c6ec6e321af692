"""What a run writes down and shows: metrics, progress, results, weights."""
