"""Figures, tables and pages for people."""
