"""One verdict a seam, on tables made by hand, and the sentence that counts them."""

from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loops import each
from reported import cell
from suture.measurement.tables.curve import Curve, arrange_pairs
from suture.measurement.tables.table import COLUMNS
from suture.measurement.tables.verdicts import EXPLAINING, Verdict, judge, say_verdict, say_verdicts

CUTS = ("stem", "middle", "head")
LOW = dict.fromkeys(EXPLAINING, 0.1)


def pair(*plain: float, controls: dict[str, Any] | None = None, half: float = 0.01, **columns: Any) -> Curve:
    """A → B, whose receiver alone reaches 95 %, with one value of every control, or one for each cut."""
    rows = []
    for kind, values in {"": plain, **(LOW if controls is None else controls)}.items():
        for i, cut in enumerate(CUTS[: len(plain)], 1):
            value = values[i - 1] if isinstance(values, tuple) else values
            noise = kind == "clustered noise"
            depth = {"sender_depth": None if noise else i / 3, "receiver_depth": i / 3}
            bounds = {"stitched_low": value - half, "stitched_high": value + half}
            bounds |= {"penalty_low": 95 - 100 * (value + half), "penalty_high": 95 - 100 * (value - half)}
            more = (
                {name: of[i - 1] if isinstance(of, tuple) else of for name, of in columns.items()} if not kind else {}
            )
            rows.append(
                cell(kind, "" if noise else "A", "B", "" if noise else cut, cut, value, **depth, **bounds, **more)
            )
    (found,) = arrange_pairs(pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS), "accuracy")
    return found


def test_each_verdict_where_its_condition_holds() -> None:
    assert judge(pair(0.945, 0.80, 0.92)) == (Verdict("works"), Verdict("fails"), Verdict("undecided"))
    assert judge(pair(0.945, 0.80, 0.92), margin=30) == (Verdict("works"),) * 3


@each("control", EXPLAINING)
def test_a_control_that_does_as_well_explains_success_and_nothing_else(control: str) -> None:
    found = judge(pair(0.945, 0.945, 0.80, controls=LOW | {control: (0.95, 0.92, 0.80)}))
    assert found == (Verdict("explained", control), Verdict("undecided"), Verdict("fails"))


def test_of_several_controls_the_most_telling_is_named() -> None:
    (found,) = judge(pair(0.945, controls=LOW | {"clustered noise": 1.0, "untrained sender": 0.95}))
    assert found.control == "untrained sender"


def test_a_control_whose_trial_failed_is_not_beaten() -> None:
    table = pair(0.945, 0.945, controls=LOW).table
    lost = (table["control"] == "untrained sender") & (table["receiver_cut"] == "stem")
    assert judge(pair(0.945, 0.945)) == (Verdict("works"),) * 2
    (found,) = arrange_pairs(table.assign(status=table["status"].where(~lost, "failed")), "accuracy")
    assert judge(found) == (Verdict("undecided"), Verdict("works"))


def test_success_without_controls_is_undecided_and_one_that_failed_somewhere_is_not_needed() -> None:
    assert judge(pair(0.945, controls={})) == (Verdict("undecided"),)
    assert judge(pair(0.945, controls={"itself": 0.95})) == (Verdict("undecided"),)
    assert judge(pair(0.945, 0.94, controls={"untrained sender": (0.1, float("nan"))}))[0] == Verdict("works")


def test_what_has_not_converged_is_never_called_a_failure_nor_explained() -> None:
    found = judge(pair(0.80, 0.945, 0.945, converged=(False, False, True), controls=LOW | {"untrained both": 0.945}))
    assert found == (Verdict("not converged"), Verdict("not converged"), Verdict("explained", "untrained both"))
    assert judge(pair(0.945, converged=False)) == (Verdict("works"),)  # more steps can only better it


def test_networks_that_are_not_to_be_trusted_are_not_judged() -> None:
    found = judge(pair(0.945, 0.80, warning=("A is near chance", "")))
    assert found == (Verdict("not judged"), Verdict("fails"))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (pair(0.945, 0.94, 0.93), "A stands in for B at every cut: worst penalty 2.0 pp (head)"),
        (pair(0.945, 0.94, 0.80), "A stands in for B at 2 of 3 cuts: worst penalty 15.0 pp (head)"),
        (pair(0.945), "A stands in for B at stem: worst penalty 0.5 pp"),
        (pair(0.80, 0.70), "A does not stand in for B at any cut: least penalty 15.0 pp (stem)"),
        (
            pair(0.92, 0.70),
            "A is not shown to stand in for B at any cut; 1 undecided; 1 fails: least penalty 3.0 pp (stem)",
        ),
        (
            pair(0.92, 0.80, 0.70),
            "A is not shown to stand in for B at any cut; 1 undecided; 2 fail: least penalty 3.0 pp (stem)",
        ),
        (
            pair(0.945, 0.92, 0.80),
            "A stands in for B at 1 of 3 cuts; 1 undecided; 1 fails: worst penalty 15.0 pp (head)",
        ),
        (
            pair(0.945, 0.945, controls=LOW | {"clustered noise": 1.0}),
            "A stands in for B at every cut, but clustered noise does as well: worst penalty 0.5 pp (stem)",
        ),
        (
            pair(0.945, 0.945, 0.92, controls=LOW | {"untrained sender": (0.95, 0.1, 0.1)}),
            "A stands in for B at 2 of 3 cuts, but at 1 of them an untrained sender does as well; 1 undecided: worst "
            "penalty 3.0 pp (head)",
        ),
        (
            pair(0.95, 0.95, 0.95, controls=dict(zip(EXPLAINING, [0.95] * 2 + [0.1] * 4, strict=True))),
            "A stands in for B at every cut, but a stitch of shuffled pairs does as well: worst penalty 0.0 pp (stem)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_sentence(found: Curve, said: str) -> None:
    assert say_verdict(found) == said


def test_the_sentence_of_several_pairs_counts_their_seams() -> None:
    good, bad, owed = pair(0.945, 0.80, 0.92), pair(0.80, 0.80), pair(0.945, controls={**LOW, "untrained both": 0.945})
    assert say_verdicts([good, bad]) == "One network stands in for another at 1 of 5 seams; 1 undecided"
    assert say_verdicts([good, owed]) == (
        "One network stands in for another at 2 of 4 seams, but at 1 of them a control does as well; 1 undecided"
    )
    assert say_verdicts([owed]) == "One network stands in for another at 1 of 1 seam, but a control does as well"
    assert say_verdicts([bad, bad]) == "One network does not stand in for another at any of 4 seams"


@pytest.mark.slow
@given(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), st.floats(0.0, 1.0), st.floats(0.0, 0.1))
def test_a_wider_margin_never_turns_a_success_into_a_failure(plain: list[float], control: float, half: float) -> None:
    found = pair(*plain, controls={"untrained sender": control}, half=half)
    order = {"fails": 0, "undecided": 1, "explained": 2, "works": 2}
    narrow, wide = ([order[one.kind] for one in judge(found, margin)] for margin in (1.0, 5.0))
    assert all(a == 0 or b > 0 for a, b in zip(narrow, wide, strict=True))
