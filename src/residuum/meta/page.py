"""Table 2 as one HTML file that needs nothing else: no scripts, no fonts, no network; every text is escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Which metric can be trusted?</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; padding-bottom: .5rem; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #8884; vertical-align: top; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
td small { display: block; opacity: .75; white-space: nowrap; }
tbody tr:hover { background: #8881; }
code, pre { font-size: .9em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
</style>
</head>
<body>
<h1>Which metric can be trusted?</h1>
<p>AUC: does the metric tell {{ about.pools.P }} models that know from {{ about.pools.N }} that do not? Q and R: does its
verdict survive 4-bit quantization and relearning of {{ about.models }} unlearned models? HM is the harmonic mean of Q and
R, overall that of AUC and HM. Small numbers are 95 % bootstrap intervals over models.</p>
<div class="scroll"><table>
<caption>{{ about.form }} form{{ ", all metrics on the same models" if about.common_subset }}; a model counts when it kept
{{ about.utility.floor }} of the full model's utility ({{ about.utility.pass if about.utility.pass is not none else "not known" }}
of {{ about.utility.of }} did) and the metric calls it unlearned.</caption>
<thead><tr><th scope="col">metric</th><th scope="col">AUC</th><th scope="col">Q</th><th scope="col">R</th><th scope="col">HM</th>
<th scope="col">overall</th><th scope="col">models used</th><th scope="col" class="text">left out</th><th scope="col" class="text">notes</th></tr></thead>
<tbody>
{% for row in rows %}<tr><th scope="row">{{ row.metric }}</th>
{% for name in numbers %}<td>{{ "-" if row[name] is none else "%.3f" | format(row[name]) }}{% set ends = row[name + "_ci95"] %}
{% if ends %}<small>{{ "%.3f" | format(ends[0]) }} to {{ "%.3f" | format(ends[1]) }}</small>{% endif %}</td>
{% endfor %}<td>{{ row.usable }}</td>
<td class="text">{% set own = counts[row.metric] %}{% for why in reasons if own.get(why) %}{{ own[why] }} {{ reasons[why] }}{{ ", " if not loop.last }}{% endfor %}</td>
<td class="text">{{ row.notes | join("; ") }}</td></tr>
{% endfor %}</tbody></table></div>
{% if about.diverged %}<h2>Relearning diverged</h2><p>{{ about.diverged | join(", ") }}: recorded, without R.</p>{% endif %}
{% if about.failed %}<h2>Failed</h2><ul>{% for model, why in about.failed.items() %}<li>{{ model }}: {{ why if why is string else why.values() | join("; ") }}</li>{% endfor %}</ul>{% endif %}
{% if about.notes %}<h2>Read this too</h2><ul>{% for note in about.notes %}<li>{{ note }}</li>{% endfor %}</ul>{% endif %}
<h2>Settings, the same before and after every attack</h2>
<pre>{{ settings }}</pre>
</body>
</html>
"""

_REASONS = {
    "low_utility": "lost their utility",
    "still_knows": "still know",
    "undefined": "undefined",
    "not_common": "not usable for all metrics",
    "diverged": "diverged",
}
_NUMBERS = ("auc", "Q", "R", "HM", "overall")


def table_page(
    rows: Sequence[Mapping[str, Any]], counts: Mapping[str, Mapping[str, int]], about: Mapping[str, Any]
) -> str:
    """The page of a table.

    Args:
        rows: of `residuum.meta.table.Table.rows`.
        counts: why models were left out, by metric.
        about: of `residuum.meta.table.Table.about`.
    """
    from jinja2 import Environment, StrictUndefined

    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_TEMPLATE)
    settings = json.dumps(about["settings"], indent=1, ensure_ascii=False)
    return template.render(
        rows=rows, counts=counts, about=about, numbers=_NUMBERS, reasons=_REASONS, settings=settings
    )  # fmt: skip
