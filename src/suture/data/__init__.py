"""Labelled images in their three roles: fit, validation and score."""

from suture.data.load import load_data
from suture.data.samples import Data, Samples

__all__ = ["Data", "Samples", "load_data"]
