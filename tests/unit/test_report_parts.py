"""Gates, figures, comparisons and the small rules of the report."""

from __future__ import annotations

import json

import pytest

from reportable import depth_result, make_store, put_evaluation, save_depth, scores
from residuum.errors import DataError, InputError, UnknownName, UsageError
from residuum.report.blocks import Value, interval, shown, to_script
from residuum.report.build import build_report, make_sections
from residuum.report.compare import compare
from residuum.report.figures import charts_of, draw, plot
from residuum.report.findings import Findings
from residuum.report.gates import parse_gates
from residuum.report.tradeoff import pareto
from residuum.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("parts") / "runs")


def test_gates_are_read_as_they_are_written():
    gates = parse_gates(" uds >= 0.8, utility_rel>0.9,quantization.em<=5e-1,fisher_masked_0.001<1 ")
    assert [str(gate) for gate in gates] == [
        "uds>=0.8",
        "utility_rel>0.9",
        "quantization.em<=0.5",
        "fisher_masked_0.001<1",
    ]


@pytest.mark.parametrize("text", ["uds", "uds=0.8", "uds>=", ">=0.8", "uds>=0.8;em<1", "uds>=0.8,,em<1"])
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(UsageError, match="--gate takes conditions"):
        parse_gates(text)


def test_a_gate_on_an_unknown_number_names_the_nearest():
    with pytest.raises(UnknownName, match="utility_rel"):
        parse_gates("utility_rell>=0.8")


def test_gates_read_the_numbers_of_the_store(store):
    findings = Findings([store])
    model = findings.find(name="npo_lr1e5_b01_a5_ep5")
    found = [gate.check(findings, model) for gate in parse_gates(
        "utility_rel>=0.9,relearning.em<=0.5,rtt.gap_closed<0.6,steering.recovery<0.5,cka>=0"
    )]  # fmt: skip
    assert [(gate["met"], gate["value"]) for gate in found] == [
        (True, 0.95),
        (False, 0.9),
        (True, 0.5),
        (False, 0.714),
        (False, None),
    ]


@pytest.mark.parametrize("ending", ["pdf", "png", "svg"])
def test_every_chart_of_the_page_can_be_drawn_for_a_paper(store, tmp_path, ending):
    pytest.importorskip("matplotlib")
    names = charts_of(make_sections(Findings([store])))
    for name, charts in names.items() if ending == "svg" else [("depth-profile", names["depth-profile"])]:
        path = draw(next(iter(charts.values())), tmp_path / f"{name}.{ending}", columns="two")
        assert path.stat().st_size > 1000
    assert {
        "depth-profile",
        "depth-heat",
        "uds-histogram",
        "trade-off",
        "pools",
        "robustness",
        "rtt-bars",
        "recovery",
        "trait-coherence",
        "probes",
    } <= set(names)


def test_a_figure_is_as_wide_as_a_column(store, tmp_path):
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    sizes = {
        c: image.open(plot("trade-off", [store], tmp_path / f"{c}.png", columns=c)).size[0] for c in ("one", "two")
    }
    assert sizes == {"one": 990, "two": 2070}  # 3.3 and 6.9 inches at 300 dpi


def test_the_same_data_give_the_same_figure(store, tmp_path):
    pytest.importorskip("matplotlib")
    first, second = (plot("depth-profile", [store], tmp_path / f"{i}.svg").read_bytes() for i in range(2))
    assert first == second


def test_a_chart_is_drawn_of_the_model_that_is_asked_for(store, tmp_path):
    pytest.importorskip("matplotlib")
    name = "rmu_lr1e4_l2_s10_ep5"
    plot("depth-profile", [store], tmp_path / "f.svg", of=name)
    with pytest.raises(UnknownName, match="rmu_lr1e4_l2_s10_ep5"):
        plot("depth-profile", [store], tmp_path / "f.svg", of="rmu_lr1e4_l2_s10_ep")


def test_an_unknown_plot_names_those_there_are(store, tmp_path):
    with pytest.raises(UnknownName, match="trade-off"):
        plot("tradeoff", [store], tmp_path / "f.pdf")


def test_a_figure_of_an_unknown_format_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(UsageError, match=r"\.pdf, \.png, \.svg"):
        plot("trade-off", [tmp_path / "nowhere"], tmp_path / "f.bmp")


def test_a_store_does_not_differ_from_itself(store):
    found = compare(store, store)
    assert found.changes
    assert all(change.difference.value == 0 for change in found.changes)
    assert found.notes == []


def test_differences_have_paired_intervals_where_items_are_known(tmp_path):
    name = "npo_lr1e5_b01_a5_ep5"
    for folder, share in (("a", 0.3), ("b", 0.7)):
        result = depth_result(name, share=share, examples=30)
        save_depth(result, tmp_path / folder / f"uds_{name}")
        put_evaluation(Store(tmp_path / folder), name, scores(result.uds))
    change = next(c for c in compare(tmp_path / "a", tmp_path / "b").changes if c.metric == "uds")
    assert change.items == 30
    assert change.difference.low < change.difference.value < change.difference.high
    own = change.first.high - change.first.low + change.second.high - change.second.low
    assert change.difference.high - change.difference.low < own  # paired: narrower than the two together


def test_stores_without_a_common_model_cannot_be_compared(tmp_path):
    put_evaluation(Store(tmp_path / "a"), "npo_lr1e5_b01_a5_ep5", scores(0.5))
    put_evaluation(Store(tmp_path / "b"), "rmu_lr1e4_l2_s10_ep5", scores(0.5))
    with pytest.raises(InputError, match="no model in common"):
        compare(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not JSON"), ("{}", "holds no table"), ('{"models": [{"uds": 1}]}', "names no model"), ('[{"model": "a", "uds": []}]', "not a number"), ('[{"model": "a"}, {"model": "a"}]', "twice")],
)  # fmt: skip
def test_a_published_table_that_is_none_is_refused_with_its_place(tmp_path, content, message):
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(DataError, match=message):
        build_report([], tmp_path / "r.html", published=tmp_path / "t.json")


def test_the_pareto_front_holds_what_no_other_beats():
    assert pareto([(0.1, 0.9), (0.5, 0.5), (0.4, 0.4), (0.9, 0.1), (0.5, 0.2)]) == [(0.1, 0.9), (0.5, 0.5), (0.9, 0.1)]


def test_json_in_a_script_cannot_end_it():
    text = to_script({"a": "</script><!-- & \u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & \u2028"}


def test_numbers_are_shown_to_three_digits_and_what_is_missing_as_a_dash():
    assert (shown(0.12345), shown(3), shown(None), shown(float("nan")), shown(True)) == ("0.123", "3", "–", "–", "yes")
    assert interval(Value(0.5, 0.4, 0.6)) == "0.400 to 0.600"
