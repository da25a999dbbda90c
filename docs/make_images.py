"""Pictures of the report's sections for these pages.

    python docs/make_images.py demo/report.html

Needs Chromium and playwright; writes docs/images/report-{section}.png.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browsing import chromium

WIDTH, MOST = 1100, 900
"""Pixels."""


def main() -> None:
    """Open the page, cut out the sections."""
    source, target = Path(sys.argv[1]).resolve(), Path(__file__).parent / "images"
    target.mkdir(exist_ok=True)
    with chromium() as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": MOST})
        page.goto(source.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        page.add_style_tag(
            content="header { position: static !important; } .scroll { max-height: 20rem; } .card, .scroll { content-visibility: visible !important; }"
        )
        page.wait_for_timeout(500)
        for section in page.locator("main > section").all():
            name = section.get_attribute("id")
            page.evaluate("name => document.getElementById(name).scrollIntoView({behavior: 'instant'})", name)
            image = Image.open(io.BytesIO(section.screenshot()))
            image = image.crop((0, 0, image.width, min(image.height, MOST)))
            path = target / f"report-{name}.png"
            image.convert("RGB").quantize(256, Image.Quantize.FASTOCTREE).save(path, optimize=True)
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
