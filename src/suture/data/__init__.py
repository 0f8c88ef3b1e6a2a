"""Labelled images in their three roles: fit, validation and score."""

from suture.data.samples import Data, Samples
from suture.data.sources.load import load_data

__all__ = ["Data", "Samples", "load_data"]
