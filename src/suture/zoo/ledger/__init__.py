"""The compute ledger: every base network that the studies need at small scale."""

from suture.zoo.ledger.entries import LEDGER
from suture.zoo.ledger.entry import CORES, HOURS, Entry
from suture.zoo.ledger.making import hours, models

__all__ = ["CORES", "HOURS", "LEDGER", "Entry", "hours", "models"]
