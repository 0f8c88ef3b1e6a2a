"""Activations at cuts, computed once, in memory or mapped from disk."""
