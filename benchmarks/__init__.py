"""Measurements of Suture itself: what it costs and what it reaches, beside the loops that people write."""
