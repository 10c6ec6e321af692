"""The records of a run: metrics, progress, results and snapshots."""
