"""``surface.txt`` lists what somebody may depend on, as it is."""

from benchmarks.surface import PATH, lines


def test_the_list_is_what_there_is() -> None:
    written = PATH.read_text(encoding="utf-8").splitlines()
    there = list(lines())
    added, gone = sorted({*there} - {*written}), sorted({*written} - {*there})
    assert (added, gone) == ([], []), "write it anew: python -m benchmarks.surface --write"
    assert written == there
