"""Methods to compare ResRep with: criteria, the minimal structure, ablations."""
