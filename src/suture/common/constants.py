"""Constants on which keys and files depend, where they can be read without torch."""

CUTS_VERSION = 2
"""Of the code that cuts networks and computes activations; raise it with a change that may change a bit."""

CHUNK = 256
"""Samples that are computed, or summed, at once wherever bits depend on how many are: for ever the same number."""

OUTPUT = "output"
"""Where all layers of a network end: no cut, but a seam may lead there if it needs none of the layers."""
ACTIVATIONS = ".activations.safetensors"  #: how files of activations end; the user may keep other files in the folder
SHORT = 16  #: letters of such a file's name, which is its key, by which trials say what they read
CLASSIFICATION = "classification"  #: the task of one class a sample
SIMILARITIES, COMPLEXITY = (
    "similarities.parquet",
    "complexity.parquet",
)  #: beside a run's table
