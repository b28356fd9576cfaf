"""docs/performance.md and its plots say what bench/results says, and nothing else."""

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from bench import plots
from bench.figures import BLOCKS, BUCKETS
from bench.profiles import summary
from bench.svg import Bar, Panel, Scale, Series, bars, number_of, panels, step_of

ROW = {"workload": "w & <x>: ops/s", "bucket": "local", "bourn": 1234.5, "s2_lite": 617.25}
SVG = "{http://www.w3.org/2000/svg}"


def versus(*ratios, goal=1.0):
    rows = [
        {**ROW, "workload": f"w{at}", "ratio": ratio, "goal": goal, "cost": {}}
        for at, ratio in enumerate(ratios)
    ]
    return {"versus": {"rows": rows}}


def soak_run():
    trend = {"mean": 300.0, "slope_per_hour": 1.5, "error_per_hour": 0.5, "samples": 9}
    return {
        "minutes": 30.0,
        "appends_per_s_asked": 5000.0,
        "full": {"append_per_s": 10_000.0},
        "samples": [
            {"at_s": 10.0 * n, "rss_mb": 300.0, "append_p50_ms": 1.0, "append_p99_ms": 9.0}
            for n in range(5)
        ],
        "judgement": {
            "trends": {"rss_mb": trend},
            "trends_of_all": {"rss_mb": trend},
            "windows": 9,
            "calm_windows": 7,
            "verdict": "memory is flat",
        },
    }


def texts(svg):
    return [node.text for node in ET.fromstring(svg).iter(f"{SVG}text")]


def test_the_document_says_what_the_files_say():
    text = plots.DOCUMENT.read_text(encoding="utf-8")
    assert plots.filled(text, plots.load()) == text, "run make plots"


def test_the_plots_are_those_of_the_files():
    made = plots.plots_of(plots.load())
    kept = {path.name: path.read_text(encoding="utf-8") for path in plots.PLOTS.glob("*.svg")}
    assert kept == made, "run make plots"


def test_the_document_has_no_figures_of_its_own():
    text = plots.DOCUMENT.read_text(encoding="utf-8")
    for name in BLOCKS:
        text = re.sub(f"<!-- {name} -->.*?<!-- end {name} -->", "", text, flags=re.DOTALL)
    unit = r"(?:ms|us|MB/s|GB/s|MiB/s|ops/s|x faster|times faster|%)"
    assert not re.findall(rf"\d[\d.,]*\s*{unit}\b", text.replace("20 ms", ""))


def test_filling_twice_changes_nothing_and_keeps_the_prose():
    text = plots.DOCUMENT.read_text(encoding="utf-8")
    once = plots.filled(text, versus(2.5))
    assert plots.filled(once, versus(2.5)) == once
    assert once.split("## Method")[1].split("##")[0] == text.split("## Method")[1].split("##")[0]
    assert plots.filled(once, plots.load()) == text


def test_a_document_without_a_place_for_a_block_is_refused():
    text = plots.DOCUMENT.read_text(encoding="utf-8").replace("<!-- end soak -->", "")
    with pytest.raises(ValueError, match="soak"):
        plots.filled(text, {})


def test_without_results_every_block_names_the_command_that_makes_them():
    for name, render in BLOCKS.items():
        assert "Not measured yet: run `make " in render({}), name
    assert plots.plots_of({}) == {}


def test_a_row_stands_in_the_table_with_its_values_and_bold_where_it_reaches_its_goal():
    said = BLOCKS["versus"](versus(2.5, 0.8, goal=2.0))
    assert "| w0 | 1,234 | 617 | **2.5** | 2 |" in said
    assert "| w1 | 1,234 | 617 | 0.8 | 2 |" in said
    assert "1 of 2 rows are at 1.0 or above, 1 reach their goal" in said
    assert "w1" in BLOCKS["misses"](versus(2.5, 0.8))
    assert "w0" not in BLOCKS["misses"](versus(2.5, 0.8))
    assert BLOCKS["misses"](versus(2.5)).startswith("None")


def test_what_a_client_costs_bounds_what_any_server_could_reach():
    cost = {
        "bourn": {"server_cpu_s": 2.0, "client_cpu_s": 4.0},
        "s2_lite": {"server_cpu_s": 3.0, "client_cpu_s": 3.0},
    }
    row = {"workload": "w: write MiB/s", "bucket": "local", "bourn": 200.0, "s2_lite": 100.0}
    rows = [row | {"ratio": 2.0, "seconds": 5.0, "cost": cost}, row | {"ratio": None}]
    said = BLOCKS["clients"]({"versus": {"machine": {"cores": 2}, "rows": rows}})
    assert said.splitlines()[2:] == ["| w | local | 2 | 6 | 4 | 6 | 500 |"]


def test_a_row_that_failed_is_a_miss_and_has_no_bar():
    assert "| w0 | 1,234 | 617 | - | 1 |" in BLOCKS["versus"](versus(None))
    assert "w0" in BLOCKS["misses"](versus(None))
    assert "failed" in texts(plots.plots_of(versus(None))["versus-local.svg"])


def test_each_bucket_that_was_measured_has_bars():
    rows = [{**ROW, "bucket": bucket, "ratio": 1.5, "goal": 1.0, "cost": {}} for bucket in BUCKETS]
    made = plots.plots_of({"versus": {"rows": rows}})
    assert sorted(made) == [f"versus-{bucket}.svg" for bucket in ("local", "memory", "s3")]
    for svg in made.values():
        assert {"w & <x>: ops/s", "1.50"} <= set(texts(svg))


def test_a_soak_is_told_with_slope_and_error_and_drawn():
    results: dict[str, Any] = {"soak": {"runs": {"pipeline off": soak_run()}}}
    said = BLOCKS["soak"](results)
    assert "1.5 ± 0.5" in said
    assert "**memory is flat**" in said
    assert "soak-pipeline-off.svg" in said
    assert "resident memory, MB" in texts(plots.plots_of(results)["soak-pipeline-off.svg"])


def test_the_distance_to_a_limit_is_the_share_of_it():
    row = {**ROW, "bucket": "local", "workload": "s2 bench, 8 KiB, 1 MiB/s: ack p50 ms"}
    results: dict[str, Any] = {
        "versus": {"rows": [{**row, "bourn": 2.0, "ratio": 1.0}]},
        "ceilings": {"figures": {"put_8_kib_p50_ms": 1.0, "loopback_round_trip_p50_ms": 0.02}},
    }
    assert "50%" in BLOCKS["distance"](results)


def test_bars_lie_on_either_side_of_one_and_end_with_the_scale():
    svg = bars("t", [Bar("a", 2.0), Bar("b", 0.5), Bar("c", 1e6), Bar("d", 1e-6)])
    places = [
        (float(node.attrib["x"]), float(node.attrib["width"]))
        for node in ET.fromstring(svg).iter(f"{SVG}rect")
    ]
    one = places[0][0]
    assert places[1][0] + places[1][1] == pytest.approx(one, abs=0.2)
    assert places[0][1] == pytest.approx(places[1][1], abs=0.2)
    assert places[2][0] == one
    assert places[2][0] + places[2][1] < 800
    assert places[3][0] > 0


@pytest.mark.parametrize("log", [False, True])
def test_a_panel_is_whole_with_no_points_one_point_and_zeros(log):
    for points in ([], [(1.0, 1.0)], [(0.0, 0.0), (10.0, 0.0)], [(1.0, 1e-9), (1e6, 1e12)]):
        svg = panels("t", [Panel("p", "x", [Series("s", points)], log_x=log, log_y=log)])
        lines = list(ET.fromstring(svg).iter(f"{SVG}polyline"))
        assert len(lines[0].attrib["points"].split()) == len(points)
        assert "nan" not in svg


def test_scales_hold_all_values_and_their_ticks_are_round():
    scale = Scale([0.3, 870.0], 0, 100, is_log=True)
    assert (scale.low, scale.high) == (0.1, 1000.0)
    assert scale.ticks() == pytest.approx([0.1, 1, 10, 100, 1000])
    scale = Scale([3.0, 870.0], 0, 100, is_log=False)
    assert scale.ticks() == [0, 500, 1000]
    assert scale.at(500) == 50
    assert [step_of(high) for high in (4, 7, 9, 0.04)] == pytest.approx([1, 2, 5, 0.01])
    assert [number_of(value) for value in (0, 1500, 2.5e6, 0.25)] == ["0", "1.5k", "2.5M", "0.25"]


def test_own_time_is_that_of_the_last_frame_by_file():
    stacks = (
        "thread (7): MainThread;run (a.py:1);work (b.py:2) 6\n"
        "thread (7): MainThread;run (a.py:1);play (b.py:9) 1\n"
        "thread (8): worker;run (a.py:1) 3\n"
    )
    found = summary(stacks)
    assert found["samples"] == 10
    assert found["main_thread_share"] == 0.7
    assert found["files"][0] == {"file": "b.py", "share": 0.7, "function": "work"}
    assert found["files"][1] == {"file": "a.py", "share": 0.3, "function": "run"}
    assert summary("")["samples"] == 0


def test_rows_that_were_measured_on_another_machine_are_counted() -> None:
    facts = {
        "cores": 2,
        "cpu": "this one",
        "memory_gb": 25.3,
        "system": "Linux",
        "file_system": "ext4",
        "python": "CPython",
        "measured_at": "2026-11-18T15:46:46+00:00",
    }
    rows = [{"cpu": "this one"}, {}, {"cpu": "another"}, {"cpu": "another"}]
    said = BLOCKS["machine"]({"versus": {"machine": facts, "rows": rows}})
    assert said.endswith("2026-11-18. 2 of the 4 rows below are of another one (another).")
    assert BLOCKS["machine"]({"versus": {"machine": facts, "rows": rows[:2]}}).endswith("-18.")
