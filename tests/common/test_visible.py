"""What a stranger wrote is seen wherever it leaves the program, and does nothing there."""

import io
import unicodedata

import pandas as pd
import pytest
import torch
from rich.table import Table

from loops import each
from reported import curve_table
from suture import Network, explain, load_data
from suture.common.errors import DataError, NetworkError
from suture.common.html import to_html
from suture.common.screen import Screen
from suture.common.visible import as_cell, visible
from suture.measurement.tables.table import write_csv

EVIL = "a\x1b]0;gone\x07b\u202ec\x00d\x9b2Je\u2066f\ud800"
SEEN = "a⟨U+001B⟩]0;gone⟨U+0007⟩b⟨U+202E⟩c⟨U+0000⟩d⟨U+009B⟩2Je⟨U+2066⟩f⟨U+D800⟩"


def test_every_unseen_character_is_written_out():
    turns = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    for number in (*range(0x3000), *range(0xF900, 0x20000), *range(0xE0000, 0xE0200)):
        one = chr(number)
        kind, written = unicodedata.category(one), unicodedata.bidirectional(one)
        acts = kind in ("Cc", "Zl", "Zp") or written in turns or (kind == "Cf" and written in ("BN", "ON"))
        acts = (acts and one not in "\t\n\u200c\u200d") or one in "\u061c\u200e\u200f"
        assert (visible(one) != one) == (acts or number == 0x2065), hex(number)
    assert visible(EVIL) == SEEN == visible(SEEN)


def test_a_terminal_is_written_no_control_but_richs_own():
    table = Table("name")
    table.add_row(EVIL)
    for thing in (table, EVIL):
        screen = Screen(file=io.StringIO(), width=200, force_terminal=True, markup=False, highlight=False)
        screen.print(thing)
        written = screen.file.getvalue()
        assert SEEN in written
        assert not {"\x07", "\x9b", "\u202e"} & {*written}
        assert "\x1b]" not in written


def test_notebooks_pages_and_explanations_show_it():
    assert SEEN in to_html(["x"], [[EVIL]], EVIL, EVIL)
    said = str(explain(curve_table((EVIL[:-1], "B"))))
    assert SEEN[:-8] in said
    assert not [one for one in said if not one.isprintable() and one != "\n"]


@each(("text", "cell"), [("=1+1", "'=1+1"), ("+x", "'+x"), ("-x", "'-x"), ("@x", "'@x"), ("x=1", "x=1"), (EVIL, SEEN)])
def test_a_spreadsheet_computes_nothing_of_a_file(tmp_path, text, cell):
    assert as_cell(text) == cell
    table = curve_table().assign(sender=text.removesuffix("\ud800"), penalty=-1.5)
    write_csv(table, tmp_path / "t.csv")
    found = pd.read_csv(tmp_path / "t.csv")
    assert set(found["sender"]) == {cell.removesuffix("⟨U+D800⟩")}
    assert set(found["penalty"]) == {-1.5}, "numbers below 0 stay numbers"


def test_half_a_character_in_a_name_is_refused_before_anything_is_measured():
    images, labels = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
    half = "a\ud800"
    with pytest.raises(NetworkError, match="with half a character in it; give another name"):
        Network(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2)), example=images[:4], name=half)
    for more in ({"name": half}, {"name": "d", "classes": ("x", half)}):
        with pytest.raises(DataError, match="with half a character in it; give another name"):
            load_data(((images, labels), (images, labels)), **more)


@each("blank", ["", "  "])
def test_a_name_of_which_nothing_is_seen_is_refused(blank):
    images, labels = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
    with pytest.raises(DataError, match="which shows no visible character; give a name"):
        load_data(((images, labels), (images, labels)), name="d", classes=("x", blank))
