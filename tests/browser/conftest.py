"""A headless Chromium that opens pages from the disk, and keeps whatever it wanted to fetch or complained of."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opened import Open, Opened

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser; tests are skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any, tmp_path: Path) -> Iterator[Open]:
    """Open HTML from a file, so wide and so coloured; what goes on is kept."""
    contexts = []

    def opened(html: str, width: int = 900, colours: str = "light", **settings: Any) -> Opened:
        path = tmp_path / f"page-{len(contexts)}.html"
        path.write_text(html, encoding="utf-8")
        size = {"width": width, "height": 900}
        context = chromium.new_context(viewport=size, color_scheme=colours, **settings)
        contexts.append(context)
        context.set_default_timeout(15_000)
        made = Opened(context.new_page())
        made.page.on("request", lambda request: made.requests.append(request.url))
        made.page.on("console", lambda said: made.complaints.append(f"{said.type}: {said.text}"))
        made.page.on("pageerror", lambda error: made.complaints.append(str(error)))
        made.page.on("dialog", lambda dialog: made.complaints.append(f"dialog: {dialog.message}"))
        made.page.goto(path.as_uri())
        return made

    yield opened
    for context in contexts:
        context.close()
