"""What a store has measured and no table has yet survives the store."""

from pathlib import Path

import pandas as pd
from benchmarks.ledger import keep_unfinished, take_unfinished

from suture.runs.store.store import STATE, TRIALS, Store


def measured(store: Store, key: str, state: bytes = b"") -> None:
    """Put a trial into a store, as a run does."""
    store.keep(TRIALS, key, {"trial": key, "status": "ok", "scores": {}, "curve": [1.0, 0.5]}, b"stitch", state)


def test_another_store_takes_what_no_table_has(tmp_path: Path) -> None:
    store, kept = Store.make(tmp_path / "first"), tmp_path / "unfinished.tar.xz"
    for key in ("a", "b"):
        measured(store, key)
    measured(store, "open", state=b"where it stopped")
    pd.DataFrame({"trial": ["b"]}).to_parquet(tmp_path / "x.trials.parquet")
    assert keep_unfinished(store, kept, tmp_path) == 1

    other = Store.make(tmp_path / "other")
    assert take_unfinished(other, kept) == 1
    assert other.finished() == {"a"}
    assert other.record(TRIALS, "a") == store.record(TRIALS, "a")
    assert other.tensors(TRIALS, "a") == b"stitch"
    assert not (other.path / TRIALS / "a" / STATE).exists()
    assert take_unfinished(other, kept) == 0, "it has it"


def test_nothing_unfinished_is_no_file(tmp_path: Path) -> None:
    store, kept = Store.make(tmp_path / "store"), tmp_path / "unfinished.tar.xz"
    kept.write_bytes(b"of before")
    assert keep_unfinished(store, kept, tmp_path) == 0
    assert not kept.exists()
    assert take_unfinished(store, kept) == 0
