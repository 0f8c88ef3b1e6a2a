"""What a terminal shows: rich tables and sentences."""
