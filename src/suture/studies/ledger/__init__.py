"""The compute ledger: every base network that the studies need at small scale."""

from suture.studies.ledger.entries import LEDGER
from suture.studies.ledger.entry import HOURS, Entry
from suture.studies.ledger.models import make_models

__all__ = ["HOURS", "LEDGER", "Entry", "make_models"]
