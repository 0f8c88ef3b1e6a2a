"""Measurements of Suture itself: its cost and its scores, beside the loops that people write."""
