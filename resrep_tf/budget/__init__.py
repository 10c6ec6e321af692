"""What channels cost."""
