"""Figures, tables and HTML pages about results."""
