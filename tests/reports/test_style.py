"""How names and numbers are written in print."""

from suture.reports.style import with_minus


def test_a_negative_number_has_a_minus_sign_and_a_name_keeps_its_hyphen() -> None:
    said = "worst penalty -1.5 pp [-2, 0.5] (layer-1 → gpt2-128x4-0, 3-4)"
    assert with_minus(said) == "worst penalty −1.5 pp [−2, 0.5] (layer-1 → gpt2-128x4-0, 3-4)"
