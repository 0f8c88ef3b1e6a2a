"""The pages about claims, against planted results."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from suture.common.errors import DataError
from suture.fits import Converged
from suture_papers import STUDIES, Claim, Result, Study, Where, load_result
from suture_papers.base.claims import STITCHES
from suture_papers.base.quantities import AtCuts, Extreme, Mean
from suture_papers.base.run import STANDING
from suture_papers.base.study import PAPERS
from suture_papers.reports.pages import claims as claims_page
from suture_papers.reports.pages.claims import page, paper_page, study_page, threshold

ROOT = Path(__file__).parents[3]
CLAIM = Claim("penalty ≤ 3 pp", "section 4", Mean("penalty"), "≤", 3.0, paper="at most 3 pp", enough=3)
PAPER = "# By hand\n\n<!-- paper: bansal2021 -->\n<!-- end -->\n"
TEMPLATE = "# By hand\n\n## bansal-x: One\n\n<!-- study: bansal-x -->\n<!-- end -->\n\nAfter, by hand.\n"


def study(*claims: Claim, name: str = "bansal-x", needs: str = "") -> Study:
    return Study(name, "A title", "Is it so?", "section 4", lambda scale: [], claims, (), ("it differs",), needs=needs)


def result(
    *penalties: float, name: str = "bansal-x", trial: str = "t", scale: str = "small", version: int = Converged.version
) -> Result:
    """A trial for each pair of networks, of 100 s, with three stitches."""
    rows = [
        {"status": "ok", "score": "accuracy", "published": False, "control": "", "unit": "fraction", "penalty": value}
        | {"n": 10_000, "network_seed": i, "trial": f"{trial}{i}", "seconds": 100.0, "sender": "A", "receiver": "B"}
        | {"sender_cut": "a", "receiver_cut": "a", "fit_data": "f", "stitch": "Conv()", "seed": seed}
        | {"fit": "Converged()", "converged": True, "versions": f"Converged {version}"}
        for i, value in enumerate(penalties)
        for seed in range(STITCHES)
    ]
    return Result(name, scale, {"trials": pd.DataFrame(rows)}, {"tables": ["trials"]})


def sentences(prose: str) -> list[str]:
    """The sentences of paragraphs and of points of a list."""
    parts = re.split(r"\n\n|\n(?=- )", prose)
    return [one for part in parts for one in re.split(r"(?<=[.?!])[*”\")]*\s+(?=[A-Z“\"*`\[])", part)]


def cells(text: str, start: str) -> list[str]:
    """The cells of the row of a table whose line holds some words."""
    (line,) = [line for line in text.splitlines() if line.startswith("|") and start in line]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


# --- one claim --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("penalties", "ours", "share", "fits", "verdict"),
    [
        ((1.0, 1.2, 1.4), "1.20 pp [0.70, 1.70], 3 pairs", "100.0 % [29.2, 100.0]", 9, "**reproduced**"),
        ((4.9, 5.0, 5.1), "5.00 pp [4.75, 5.25], 3 pairs", "0.0 % [0.0, 70.8]", 9, "**not reproduced**"),
        (
            (2.0, 3.0, 4.0),
            "3.00 pp [0.52, 5.48], 3 pairs",
            "66.7 % [9.4, 99.2]",
            9,
            "undecided (more than 100 networks are needed)",
        ),
        ((1.0, 1.2), "1.10 pp, 2 pairs", "100.0 % [15.8, 100.0]", 6, "undecided (at least 3 networks are needed)"),
        ((-1.0, -1.2, -1.4), "−1.20 pp [−1.70, −0.70], 3 pairs", "100.0 % [29.2, 100.0]", 9, "**reproduced**"),
    ],
)
def test_a_claim_has_its_figure_interval_seeds_and_verdict(
    penalties: tuple[float, ...], ours: str, share: str, fits: int, verdict: str
) -> None:
    """Intervals by hand: 4.303 × s / √3, with s = 0.2, 0.1 and 1; shares from a table of Clopper & Pearson's."""
    made = study_page(TEMPLATE, study(CLAIM), {"bansal-x": result(*penalties)})
    ours = f"{ours}; holds of {share} of pairs; {fits} fits converged"
    assert cells(made, CLAIM.statement) == [CLAIM.statement, "section 4", "at most 3 pp", ours, "≤ 3 pp", "", verdict]


def test_thresholds_say_whose_they_are_and_their_margin() -> None:
    assert threshold(CLAIM) == "≤ 3 pp"
    assert threshold(replace(CLAIM, ours=True)) == "≤ 3 pp†"
    assert threshold(replace(CLAIM, direction="≥", threshold=-0.5, unit="", margin=0.3)) == "≥ −0.5 (margin 0.3)"
    assert threshold(replace(CLAIM, unit="ρ", threshold=0.8)) == "≤ 0.8"
    assert threshold(Claim("a report", "section 4", Mean("penalty"))) == ""


def test_a_report_is_no_verdict_and_another_fit_is_named() -> None:
    shown = Claim("a report", "section 4", Mean("penalty"), fit="published")
    made = study_page(TEMPLATE, study(shown), {"bansal-x": result(1.0, 1.0, 1.0)})
    assert cells(made, "a report")[3:] == [
        "1.00 pp (all alike), 3 pairs; 9 fits converged (fit: published)",
        "",
        "",
        "report",
    ]


def test_what_has_no_figure_is_not_measured() -> None:
    lacking = Claim("of others", "section 4", Mean("penalty", Where(sender="Z")), "≤", 3.0)
    made = study_page(TEMPLATE, study(lacking), {"bansal-x": result(1.0, 1.0, 1.0)})
    assert cells(made, "of others")[3:] == ["", "≤ 3 pp", "", "not measured"]


def test_bars_in_names_do_not_part_cells() -> None:
    made = study_page(TEMPLATE, study(replace(CLAIM, statement="a|b")), {"bansal-x": None})
    assert "| a\\|b | section 4 |" in made


# --- all claims -------------------------------------------------------------------------------------------------------


def test_the_summary_counts_experiments_and_claims() -> None:
    good, bad = result(1.0, 1.0, 1.1), result(9.0, 9.0, 9.1)
    shown = Claim("a report", "section 4", Mean("penalty"))
    studies = [
        study(CLAIM, shown, name="bansal-a"),
        study(CLAIM, name="bansal-b"),
        study(CLAIM, name="bansal-c"),
        study(shown, name="smith-d"),
    ]
    made = page({"bansal-a": good, "bansal-b": bad, "bansal-c": None, "smith-d": good}, studies)
    assert cells(made, "[bansal2021](bansal2021")[1:] == ["3", "2", "1", "1", "0", "0", "0", "1"]
    assert cells(made, "| all |")[1:] == ["4", "3", "1", "1", "0", "1", "0", "1"]
    assert (
        "Of 4 experiments 3 were run. Their 4 claims, when converged: "
        "1 reproduced, 1 not reproduced, 0 undecided, 2 report" in made
    )


def test_an_experiment_is_shown_by_the_claim_that_decides_it() -> None:
    lax, strict = (replace(CLAIM, statement=f"≤ {pp:g} pp", threshold=pp) for pp in (9.0, 0.5))
    of_another = study(lax, name="smith-y")
    made = paper_page(PAPER, "bansal2021", {"bansal-x": result(1.0, 1.2, 1.4)}, [study(lax, strict), of_another])
    assert "smith-y" not in made
    assert cells(made, "[bansal-x](")[1] == "≤ 0.5 pp"
    assert cells(made, "[bansal-x](")[-3:] == ["≤ 0.5 pp", "", "**not reproduced**"]
    made = paper_page(PAPER, "bansal2021", {"bansal-x": result(1.0, 1.2, 1.4)}, [study(lax)])
    assert cells(made, "[bansal-x](")[-1] == "**reproduced**"
    barely, surely = (replace(CLAIM, statement=f"≤ {pp:g} pp", threshold=pp) for pp in (4.74, 3.0))
    made = paper_page(PAPER, "bansal2021", {"bansal-x": result(4.9, 5.0, 5.1)}, [study(barely, surely)])
    assert cells(made, "[bansal-x](")[-3:] == ["≤ 3 pp", "", "**not reproduced**"]


def test_the_page_of_an_experiment_opens_with_its_verdict_and_folds_its_tables() -> None:
    other = replace(CLAIM, statement="penalty ≤ 9 pp", threshold=9.0)
    made = study_page(TEMPLATE, study(other, CLAIM), {"bansal-x": result(4.9, 5.0, 5.1)})
    before, folded = made.split("<details")
    counted = "Of 2 claims with a threshold: 1 reproduced, 1 not reproduced."
    rests = (
        "It rests on this claim: penalty ≤ 3 pp. Measured: 5.00 pp [4.64, 5.36], 3 pairs, at 97.5 % (threshold ≤ 3 pp)."
    )
    assert f"**Verdict: not reproduced.** {counted} {rests}" in before
    alone = study_page(TEMPLATE, study(CLAIM), {"bansal-x": result(4.9, 5.0, 5.1)})
    assert "**Verdict: not reproduced.** It rests on this claim: penalty ≤ 3 pp. Measured: 5.00 pp [4.7" in alone
    assert "All 2 claims" in folded
    assert folded.index("penalty ≤ 9 pp") < folded.index("It differs") < folded.index("</details>")


def test_trials_that_studies_share_are_counted_once() -> None:
    results = {"bansal-a": result(1.0, 1.0, 1.0), "bansal-b": result(1.0, 1.0, 1.0, 1.0)}
    made = page(results, [study(CLAIM, name="bansal-a"), study(CLAIM, name="bansal-b")])
    assert "4 trials, 7 min of one thread" in made


def test_networks_are_counted_once_and_by_where_they_trained() -> None:
    done, on_the_way = None, 4.0
    rows = [
        ("k1", "cpu", 3600.0, done),
        ("k1", "cuda", 60.0, done),
        ("k2", "cuda", 1800.0, done),
        ("k3", "cuda", 900.0, on_the_way),
    ]
    networks = pd.DataFrame(rows, columns=["key", "device", "seconds", "until"]).assign(own=True)
    made = page({"bansal-x": result(1.0)}, [study(CLAIM)], networks)
    assert "2 networks were trained: 1 on one core in 60 min and 1 on a GPU in 30 min." in made


def test_an_experiment_that_was_not_run_says_so() -> None:
    needy = study(CLAIM, needs="ImageNet")
    assert cells(paper_page(PAPER, "bansal2021", {"bansal-x": None}, [needy]), "[bansal-x](") == [
        "[bansal-x](bansal-x.md): A title",
        "",
        "",
        "",
        "",
        "not run",
    ]
    made = study_page(TEMPLATE, needy, {"bansal-x": None})
    assert cells(made, CLAIM.statement)[3:] == ["", "≤ 3 pp", "", "not run"]
    assert "**Not run** at small scale: it needs ImageNet." in made
    assert made.count("ImageNet") == 1
    assert "- It differs." in made


def test_pictures_are_linked_where_there_are_any() -> None:
    results = {"bansal-x": result(1.0)}
    assert "](images/bansal-x.png)" in study_page(TEMPLATE, study(CLAIM), results, {"bansal-x"})
    assert "images/" not in study_page(TEMPLATE, study(CLAIM), results)


def test_tiny_has_no_verdicts() -> None:
    with pytest.raises(DataError, match="tiny"):
        page({"bansal-x": result(1.0, scale="tiny")}, [study(CLAIM)])


# --- the page of a paper ----------------------------------------------------------------------------------------------


def test_what_is_written_by_hand_stays_and_the_rest_is_replaced() -> None:
    once = study_page(TEMPLATE, study(CLAIM), {"bansal-x": result(1.0, 1.0, 1.0)})
    assert once.startswith("# By hand\n\n## bansal-x: One\n\n<!-- study: bansal-x -->\n")
    assert once.endswith("<!-- end -->\n\nAfter, by hand.\n")
    assert "**Question.** Is it so?" in once
    assert "- It differs.\n" in once
    assert cells(once, CLAIM.statement)[-1] == "**reproduced**"
    again = study_page(once, study(CLAIM), {"bansal-x": result(9.0, 9.0, 9.0)})
    assert cells(again, CLAIM.statement)[-1] == "**not reproduced**"
    assert study_page(again, study(CLAIM), {"bansal-x": result(1.0, 1.0, 1.0)}) == once


def test_data_roles_are_said() -> None:
    made = study_page(TEMPLATE, study(CLAIM), {"bansal-x": None})
    roles = CLAIM.roles
    assert f"| stitches are fitted on | scored on | baseline |\n| --- | --- | --- |\n| {roles.fitted} |" in made
    assert cells(made, f"{roles.fitted} |") == [roles.fitted, roles.scored, roles.baseline]


def test_a_page_has_its_place_once() -> None:
    with pytest.raises(DataError, match=r"page of bansal-y has 0 places .* write '<!-- study: bansal-y -->'"):
        study_page(TEMPLATE, study(CLAIM, name="bansal-y"), {"bansal-y": None})
    with pytest.raises(DataError, match="page of bansal-x has 2 places"):
        study_page(TEMPLATE + TEMPLATE, study(CLAIM), {"bansal-x": None})
    with pytest.raises(DataError, match="page of bansal2021 has 0 places"):
        paper_page(TEMPLATE, "bansal2021", {"bansal-x": None}, [study(CLAIM)])


def test_every_study_has_a_page_and_is_in_the_sites_list() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs/papers").glob("*.md")}
    others = {"claims", "complexity", "findings", "fit-decides", "locating", "paper-scale", "study", "training"}
    others |= {"versions", "zoo"}
    assert set(pages) == {*STUDIES, *PAPERS.values(), *others}
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for one in STUDIES.values():
        assert pages[one.id].startswith(f"# {one.id}: {one.title}\n\n*Of ["), one.id
        assert f"{one.title}: papers/{one.id}.md\n" in nav.replace('"', ""), one.id
    for paper in PAPERS.values():
        assert f"          - papers/{paper}.md\n" in nav


def test_versions_are_told_where_there_are_several():
    old, new = result(1.0, name="old", version=OLD), result(1.0, name="new")
    assert claims_page._versions({"new": new, "none": None}) == ""
    said = claims_page._versions({"old": old, "new": new, "none": None})
    assert "Of 2 experiments, 1 were measured by parts that have changed since." in said
    assert "The verdicts of these [stand](versions.md): new." in said


OLD = min(STANDING["Converged"]) - 1  #: a version whose verdicts do not stand
BY_OLD = "not measured again; the figure is by an older version"


def test_a_figure_of_another_version_is_shown_and_decides_nothing() -> None:
    old = result(1.0, 1.2, 1.4, version=OLD)
    line = cells(study_page(TEMPLATE, study(CLAIM), {"bansal-x": old}), CLAIM.statement)
    assert line[3].startswith("1.20 pp")
    assert line[-1] == BY_OLD


@pytest.mark.parametrize("version", [*STANDING["Converged"], Converged.version])
def test_a_version_that_is_known_to_stand_decides(version: int) -> None:
    text = study_page(TEMPLATE, study(CLAIM), {"bansal-x": result(1.0, 1.2, 1.4, version=version)})
    assert cells(text, CLAIM.statement)[-1] == "**reproduced**"


def test_a_verdict_of_an_older_version_is_withdrawn_if_the_drift_reaches_its_threshold() -> None:
    """A penalty that was found stands; whether it is small either way is as uncertain as fits have moved."""
    either = Extreme((AtCuts("penalty"),), either=True)
    for quantity, said in ((Mean("penalty"), "**reproduced**"), (either, "undecided (by an older version")):
        claim = replace(CLAIM, quantity=quantity, threshold=3.0)
        for version in (min(STANDING["Converged"]), Converged.version):
            made = result(1.0, 1.2, 1.4, version=version)
            line = cells(study_page(TEMPLATE, study(claim), {"bansal-x": made}), claim.statement)
            assert line[-1].startswith(said if version < Converged.version else "**reproduced**")


def test_a_reading_is_marked_and_said_with_its_reason() -> None:
    made = study_page(TEMPLATE, study(replace(CLAIM, reading="the old one was too strict")), {"bansal-x": None})
    assert f"| {CLAIM.statement} ‡ |" in made
    assert "- The old one was too strict.\n" in made


def test_what_this_version_did_not_measure_keeps_its_older_figure(tmp_path: Path) -> None:
    """The results of two runs, the second of which left a network out, and went over the first in the same folder."""
    of_vit = Claim("of the ViT", "section 4", Mean("penalty", Where(sender="ViT")), "≤", 3.0, enough=3)
    for sender, version, penalties in (("ViT", OLD, (1.0, 1.2, 1.4)), ("A", Converged.version, (2.0, 2.2, 2.4))):
        made = result(*penalties, version=version)
        made.card["scale"] = made.scale
        made.tables["trials"].loc[:, "sender"] = sender
        made.save(tmp_path)
    found = load_result(tmp_path, "bansal-x")
    assert found is not None
    of_a = replace(CLAIM, quantity=Mean("penalty", Where(sender="A")))
    text = study_page(TEMPLATE, study(of_a, of_vit), {"bansal-x": found})
    assert cells(text, CLAIM.statement)[-1] == "**reproduced**"
    assert cells(text, "of the ViT")[3].startswith("1.20 pp")
    assert cells(text, "of the ViT")[-1] == BY_OLD


def test_a_difference_that_most_experiments_share_stands_on_the_papers_page():
    studies = [study(CLAIM, name=f"bansal-{letter}") for letter in "abc"]
    other = replace(study(CLAIM, name="bansal-d"), deviations=("it differs otherwise",))
    results = {one.id: None for one in (*studies, other)}
    made = paper_page(PAPER, "bansal2021", results, [*studies, other])
    assert "## What differs from the paper in most experiments\n\n- It differs. (Not in bansal-d.)\n" in made
    template = TEMPLATE.replace("study: bansal-x", "study: bansal-a")
    made = study_page(template, studies[0], results, (), [*studies, other])
    assert "It differs." not in made
    assert "(bansal2021.md#what-differs-from-the-paper-in-most-experiments)" in made
    made = study_page(TEMPLATE.replace("bansal-x", "bansal-d"), other, results, (), [*studies, other])
    assert "- It differs otherwise.\n" in made
    assert "what-differs" not in made
    assert "## What differs" not in paper_page(
        PAPER, "bansal2021", results, [*studies[:2], other, replace(other, id="bansal-e")]
    )


def test_a_page_has_its_command_its_tables_and_how_often_the_published_fit_was_run():
    made = result(1.0, 1.2, 1.4)
    page_of = study_page(TEMPLATE, study(CLAIM), {"bansal-x": made})
    assert "`suture run bansal-x --scale small" in page_of
    assert "[trials](../../papers/results/small/bansal-x.trials.parquet)" in page_of
    assert "So far" not in page_of
    default = made.tables["trials"]
    once = default[default["network_seed"] == 0].assign(published=True, fit="bansal2021")
    made.tables["trials"] = pd.concat([default, default.assign(receiver_cut="b"), once], ignore_index=True)
    page_of = study_page(TEMPLATE, study(CLAIM), {"bansal-x": made})
    assert "- So far the published fit has been measured at 1 of 2 seams, in 1 of 3 pairs.\n" in page_of
    made.tables["trials"] = pd.concat([default, default.assign(published=True)], ignore_index=True)
    assert "So far" not in study_page(TEMPLATE, study(CLAIM), {"bansal-x": made})


def test_by_the_recipe_there_is_a_verdict_and_of_older_versions_the_figure_alone():
    for version, said in ((Converged.version, "; undecided (at least 5 networks are needed)"), (OLD, "")):
        made = result(1.0, version=version)
        rows = made.tables["trials"]
        made.tables["trials"] = pd.concat([rows, rows.assign(published=True, fit="bansal2021", penalty=2.0)])
        page_of = study_page(TEMPLATE, study(CLAIM), {"bansal-x": made})
        assert f" By the paper's recipe: 2.00 pp, 1 pair{said}.\n" in page_of


# --- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_is_short_and_names_no_version_of_the_code(name: str) -> None:
    text = (ROOT / "docs" / "papers" / f"{name}.md").read_text(encoding="utf-8")
    _, _, own = re.sub(r"<!-- study:.*?<!-- end -->", "", text, flags=re.DOTALL).split("\n\n", 2)
    prose = re.sub(r"\]\([^)]*\)", "]", own)
    assert len(prose.split()) <= 250
    assert not re.search(r"\bversions? \d|Converged` \d", prose)
    assert not [sentence for sentence in sentences(prose) if len(sentence.split()) > 30]
