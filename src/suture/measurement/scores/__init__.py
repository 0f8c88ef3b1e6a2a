"""Accuracy, loss and traits; their intervals; the outputs of a stitched network."""
