"""The page in a real browser: no errors, no network, everything that can be clicked, typed, printed or read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from browsing import CHROMIUM, chromium
from reportable import HOSTILE, depth_result, make_store, put_evaluation, save_depth, scores
from residuum.report.build import build_report
from residuum.store import Store

PAPER = {"width": 1047, "height": 718}
"""A4 on its side, less the margins, in pixels of CSS."""

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = make_store(tmp_path_factory.mktemp("browser") / "runs")
    return build_report(root, root.parent / "report.html")


@contextmanager
def opened(browser, path, **options):
    """The page once everything is drawn, with what it said and asked for on the way."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True, **options)
    page = context.new_page()
    page.said, page.asked, page.dialogs = [], [], []
    page.on("console", lambda message: page.said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("dialog", lambda dialog: (page.dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    try:
        yield page
    finally:
        context.close()


@pytest.fixture
def page(browser, report):
    with opened(browser, report) as found:
        yield found


def column(page, key):
    """The visible cells of a column of the benchmark, from top to bottom."""
    script = """(key) => {
        const table = document.querySelector('[data-table=benchmark] table');
        const at = Array.from(table.tHead.rows[0].cells).findIndex((cell) => cell.dataset.key === key);
        return Array.from(table.tBodies[0].rows).filter((row) => !row.hidden).map((row) => (row.cells[at].querySelector('span') || row.cells[at].firstChild).textContent);
    }"""
    return page.evaluate(script, key)


def test_it_opens_without_errors_and_without_any_request(page, report):
    assert page.said == []
    assert page.asked == [report.as_uri()]


def test_every_chart_is_drawn(page):
    assert page.locator("figure svg[role=img]").count() >= 12
    assert page.locator("figure svg[role=img]:not(:has(*))").count() == 0


def test_a_click_on_a_heading_sorts_and_a_second_one_turns_it_round(page):
    heading = page.locator("[data-table=benchmark] th[data-key=uds] button")
    heading.click()
    down = [float(value) for value in column(page, "uds")]
    heading.click()
    up = [float(value) for value in column(page, "uds")]
    assert down == sorted(down, reverse=True)
    assert up == sorted(up)


def test_rows_are_chosen_by_method_and_by_words(page):
    page.locator("[data-table=benchmark] select[data-key=method]").select_option("rmu")
    assert column(page, "method") == ["rmu"]
    page.locator("[data-table=benchmark] select[data-key=method]").select_option("")
    page.locator("[data-table=benchmark] [data-search]").fill("simnpo ep5")
    assert [name.split("_")[0] for name in column(page, "model")] == ["simnpo"]
    page.locator("[data-table=benchmark] [data-search]").fill("")
    page.locator("[data-table=benchmark] select[data-key=lr]").select_option("1e-05")
    assert len(column(page, "model")) == 2


def test_chosen_rows_and_columns_are_saved_as_csv_and_latex(page):
    page.locator("[data-table=benchmark] select[data-key=method]").select_option("rmu")
    page.locator("[data-table=benchmark] details.columns summary").click()
    page.locator("[data-table=benchmark] [data-none]").click()
    page.locator("[data-table=benchmark] label", has_text="utility_rel").locator("input").check()
    texts = {}
    for kind in ("csv", "tex"):
        with page.expect_download() as waiting:
            page.locator(f"[data-export={kind}]").first.click()
        texts[kind] = waiting.value.path().read_text()
    assert texts["csv"] == "model,utility_rel\nrmu_lr1e4_l2_s10_ep5,0.950\n"
    assert "rmu\\_lr1e4\\_l2\\_s10\\_ep5 & 0.950 \\\\" in texts["tex"]


def test_the_example_browser_walks_and_finds(page):
    box = page.locator(".example")
    assert box.locator("h3").inner_text().startswith("Who is author 0?")
    assert box.locator("mark").inner_text() == "Name 0"
    box.get_by_role("button", name="next").click()
    assert box.locator("h3").inner_text().startswith("Who is author 1?")
    box.get_by_role("button", name="previous").click()
    box.get_by_role("button", name="previous").click()
    assert box.locator("h3").inner_text().startswith("Who is author 5?")
    box.get_by_role("searchbox").fill("author 3")
    assert box.locator("h3").inner_text().startswith("Who is author 3?")
    assert "unlearned says 3" in box.inner_text()


def test_another_model_shows_its_own_examples(page):
    choice = page.locator("[data-choice=depth]")
    choice.locator("select").first.select_option("1")
    page.wait_for_selector("[data-choice=depth][data-shown='1']")
    name = choice.locator("select").first.locator("option").nth(1).inner_text()
    assert name in choice.locator("figcaption").first.inner_text()


def test_the_numbers_behind_a_chart_can_be_opened(page):
    figure = page.locator("figure[data-chart=trade-off]")
    figure.locator("summary").click()
    figure.locator("tbody tr").first.wait_for()
    assert figure.locator("tbody tr").count() == 5


def test_cards_are_found_by_flag(page, browser, tmp_path):
    root = make_store(tmp_path / "runs", parts=False)
    for i in range(4):
        put_evaluation(Store(root), f"undial_lr{i + 1}e5_b10_a5_ep5", scores(0.9, utility=0.5))
    with opened(browser, build_report(root, tmp_path / "r.html")) as many:
        many.locator("[data-cards]").fill("utility lost")
        assert many.locator(".card:visible").count() == 4


def test_the_theme_follows_the_system_and_the_button(browser, report):
    def background(page):
        return page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    with opened(browser, report, color_scheme="dark") as page:
        dark = background(page)
        page.locator("#theme").click()
        light = background(page)
        assert (page.locator("#theme").inner_text(), dark, light) == (
            "theme: light",
            "rgb(20, 23, 27)",
            "rgb(255, 255, 255)",
        )
        page.locator("#theme").click()
        assert background(page) == dark


def test_everything_can_be_reached_and_used_with_the_keyboard(page):
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    seen = set()
    for _ in range(150):
        page.keyboard.press("Tab")
        seen.add(page.evaluate(
            "() => { const e = document.activeElement; return e.id || (e.closest('th') || {dataset: {}}).dataset.key || Object.keys(e.dataset)[0] || e.tagName + (e.getAttribute('href') || ''); }"
        ))  # fmt: skip
    assert {"theme", "A#benchmark", "search", "uds", "example", "export", "intervals", "SUMMARY"} <= seen
    page.locator("[data-table=benchmark] th[data-key=uds] button").focus()
    page.keyboard.press("Enter")
    assert page.locator("[data-table=benchmark] th[data-key=uds]").get_attribute("aria-sort") == "descending"


def test_every_control_has_a_name(page):
    script = """() => Array.from(document.querySelectorAll('button, select, input, summary')).filter((e) =>
        !(e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && Array.from(e.labels).some((l) => l.textContent.trim())))).map((e) => e.outerHTML)"""
    assert page.evaluate(script) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_a_contrast_of_at_least_four_and_a_half(browser, report, scheme):
    script = """() => {
        const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
        const rgba = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return Array.from(canvas.getImageData(0, 0, 1, 1).data); };
        const light = ([r, g, b]) => { const f = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
        const behind = (node) => { for (; node; node = node.parentElement) { const c = rgba(getComputedStyle(node).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255, 255]; };
        const bad = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            const parent = walker.currentNode.parentElement, style = getComputedStyle(parent);
            if (!walker.currentNode.textContent.trim() || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'title', 'OPTION'].includes(parent.tagName) || !parent.checkVisibility()) continue;
            const a = light(rgba(parent.namespaceURI.endsWith('svg') ? style.fill : style.color)), b = light(behind(parent));
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (ratio < 4.5) bad.push([walker.currentNode.textContent.trim().slice(0, 40), ratio]);
        }
        return bad;
    }"""
    with opened(browser, report, color_scheme=scheme) as page:
        assert page.evaluate(script) == []


def test_no_table_is_cut_on_paper(browser, report):
    with opened(browser, report) as page:
        page.locator("[data-table=benchmark] details.columns summary").click()
        page.locator("[data-table=benchmark] [data-all]").click()
        page.set_viewport_size(PAPER)
        page.emulate_media(media="print")
        page.wait_for_timeout(100)
        cut = page.evaluate(
            "() => Array.from(document.querySelectorAll('table')).filter((t) => t.checkVisibility() && t.getBoundingClientRect().right > innerWidth + 1)"
            ".map((t) => [t.closest('[data-table]')?.dataset.table, t.getBoundingClientRect().right])"
        )
        assert cut == []
        assert page.evaluate(
            "() => Array.from(document.querySelectorAll('.scroll')).every((box) => getComputedStyle(box).overflow === 'visible')"
        )


def test_it_prints(browser, report, tmp_path):
    with opened(browser, report) as page:
        page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
        assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def test_what_models_and_users_wrote_is_text_and_nothing_else(browser, tmp_path):
    root = make_store(tmp_path / "runs", text=HOSTILE)
    name = f"npo {HOSTILE}"
    save_depth(depth_result(name, text=HOSTILE), root / "uds_hostile")
    put_evaluation(Store(root), name, scores(0.5))
    with opened(browser, build_report(root, tmp_path / "r.html", title=HOSTILE)) as page:
        assert page.dialogs == []
        assert page.said == []
        assert HOSTILE in page.locator("h1").inner_text()
        assert HOSTILE in page.locator("#verdict").inner_text()
        example = page.locator(".example").inner_text()
        assert example.count("<script>alert(1)</script>{{7*7}}") >= 3  # question and what the models said
        assert HOSTILE in page.locator("#steering").inner_text()
        assert page.locator("main script:not([type])").count() == 0
