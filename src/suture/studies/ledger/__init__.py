"""The compute ledger: every base network that the studies need at small scale."""

from suture.studies.ledger.entries import LEDGER
from suture.studies.ledger.entry import CORES, HOURS, Entry
from suture.studies.ledger.models import hours, make_models

__all__ = ["CORES", "HOURS", "LEDGER", "Entry", "hours", "make_models"]
