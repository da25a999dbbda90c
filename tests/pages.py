"""A report read back as its reader has it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html import unescape
from html.parser import HTMLParser

from residuum.report.build import build_report


class Page(HTMLParser):
    """A page as a reader has it: ids, links, cells of tables, packed data, texts outside of scripts."""

    def __init__(self, path) -> None:
        super().__init__()
        self.ids, self.links, self.tables, self.scripts, self.text = set(), [], {}, [], ""
        self._table, self._cell, self._note, self._script = None, None, None, None
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.ids |= {known["id"]} if "id" in known else set()
        if tag == "a":
            self.links.append(known["href"])
        elif tag == "script":
            self._script = (known.get("type"), known.get("id"), known.get("class"))
            self.scripts.append([*self._script, ""])
        elif "data-table" in known:
            self._table = self.tables.setdefault(known["data-table"], {"columns": [], "rows": [], "notes": []})
        elif tag == "tr" and self._table is not None and self._table["columns"]:
            self._table["rows"].append([])
            self._table["notes"].append({})
        elif tag in ("th", "td") and self._table is not None:
            if "data-key" in known:
                self._table["columns"].append(known["data-key"])
            else:
                self._cell = ""
        elif tag == "small" and self._cell is not None:
            self._table["rows"][-1].append(self._cell)
            self._cell, self._note = None, ""

    def handle_endtag(self, tag):
        if tag == "script":
            self._script = None
        elif tag == "small" and self._note is not None:
            column = self._table["columns"][len(self._table["rows"][-1]) - 1]
            self._table["notes"][-1][column] = self._note
            self._note = None
        elif tag in ("th", "td") and self._cell is not None:
            self._table["rows"][-1].append(self._cell)
            self._cell = None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[-1][-1] += data
            return
        self.text += data
        if self._cell is not None:
            self._cell += data
        elif self._note is not None:
            self._note += data

    def rows(self, name):
        table = self.tables[name]
        return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]

    def intervals(self, name):
        """What stands below the numbers, by column."""
        return self.tables[name]["notes"]

    def cards(self):
        """Title, and numbers with intervals, of every card."""
        number = re.compile(r'class="number"[^>]*>([^<]*)</a><small>([^<]*)</small>')
        parts = self.source.split('<article class="card"')[1:]
        return [
            (unescape(re.search("<h3>(.*?)</h3>", part)[1]), number.findall(part.partition("</article>")[0]))
            for part in parts
        ]

    def options(self, name):
        """The blocks of every option of a choice, by what the option is called."""
        box = self.source.partition(f'data-choice="{name}"')[2].partition("</select>")[0]
        labels = [unescape(label) for label in re.findall(r'<option value="\d+">([^<]*)</option>', box)]
        packs = self.packs()
        return {label: packs[f"{name}-{i}"] for i, label in enumerate(labels)}

    def packs(self):
        return {
            key.removeprefix("pack-"): json.loads(gzip.decompress(base64.b64decode(text)))
            for kind, key, _, text in self.scripts
            if kind == "text/plain"
        }

    def charts(self):
        return [
            json.loads(text)
            for kind, _, name, text in self.scripts
            if kind == "application/json" and name == "chart-data"
        ]


def built(root, tmp_path, **options) -> Page:
    """The page of one or more stores."""
    return Page(build_report(root, tmp_path / "report.html", **options))
