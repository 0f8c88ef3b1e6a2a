"""The definition: networks and their cuts, activations, stitches, folding, and the stitched network."""
