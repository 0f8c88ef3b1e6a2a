"""The compute ledger: every base network that the studies need at small scale."""

from suture_papers.ledger.entries import LEDGER
from suture_papers.ledger.entry import HOURS, Entry
from suture_papers.ledger.models import make_models

__all__ = ["HOURS", "LEDGER", "Entry", "make_models"]
