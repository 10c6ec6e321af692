"""What ResRep is compared with: criteria, the minimal structure, ablations."""
