"""The pictures of docs/gallery.md, drawn by the programs that the page shows; it takes some minutes.

python benchmarks/gallery.py docs/images
"""

import argparse
import os
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "gallery.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    os.chdir(parser.parse_args().pictures)
    names = {"__name__": "gallery"}
    for program in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        print(program, flush=True)
        exec(program, names)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
