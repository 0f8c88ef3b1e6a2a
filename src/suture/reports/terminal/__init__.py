"""Output for a terminal: rich tables and sentences."""
