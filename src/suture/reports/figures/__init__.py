"""Figures to print, by matplotlib."""
