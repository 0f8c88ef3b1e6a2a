"""The kept tables of fits and what they send are those of what was measured."""

from pathlib import Path

from benchmarks import recent_fits

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_tables_that_the_benchmark_prints() -> None:
    page = (ROOT / "benchmarks/results/recent_fits/tables.md").read_text(encoding="utf-8").splitlines()
    lines = [line for line in recent_fits.tables() if line]
    assert len(lines) > 20
    assert [line for line in lines if line not in page] == []


def test_every_fit_was_measured_at_as_many_seams() -> None:
    held = recent_fits._named(recent_fits._accuracy("fits"))
    counts = held.groupby("by").size()
    assert counts[recent_fits.AWARE] == recent_fits.AWARE_CUTS
    assert set(counts.drop(recent_fits.AWARE)) == {sum(len(cuts.split()) for cuts in recent_fits.SEAMS.values())}
    assert counts.drop(recent_fits.AWARE).min() >= 24
