"""The benchmark modules run, and their files say what they claim. Small and fast: nothing is timed here."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import children, estimates, instances, long_graphs, plots, proof, scale, solving, tables
from planner.errors import InputError
from planner.graph import GraphIndex
from planner.ideals import enumerate_ideals, group_layers
from planner.options import Objective

PUBLISHED = Path(__file__).parent / "instances" / "device-placement"
BERT24 = PUBLISHED / "bert24_inference.json"
OPTIMUM_MS = 17.789906
"""Of bert24_inference on its devices: proof.md, table A."""
OPTIMUM_8_MS = 14.2039
"""Of the same model on 8 accelerators: proof.md, table B."""
EXPORTS = instances.find_instances([instances.OWN])
MOST_BYTES = 3_000_000
MOST_OPERATORS = 1_500


def test_a_row_of_a_published_instance():
    (row,) = proof.rows({"bert24": BERT24}, [solving.SHIPPED], limit_s=60, memory_gib=8)
    assert row["instance"] == "bert24"
    assert (row["k"], row["setting"], row["cpus"]) == (6, "shipped", 1)
    assert row["objective"] == pytest.approx(OPTIMUM_MS, rel=1e-6)
    assert row["bound"] <= row["objective"] * (1 + 1e-9)
    assert row["cpu_s"] > 0
    assert row["rss_mib"] > 1


def test_setting_one_has_neither_cpu_nor_memory_limit():
    problem = instances.on_accelerators(instances.load_instance(BERT24), 8)
    assert {device.type for device in problem.cluster.devices} == {"accelerator"}
    report = solving.solve(problem, 60)
    assert report.objective_s * 1e3 == pytest.approx(OPTIMUM_8_MS, rel=1e-5)


def test_a_child_that_fails_is_a_row_with_its_reason():
    values = children.run_child("benchmarks.solving", [str(BERT24), "no number", "1"], 30, 8)
    assert values["status"] == "error"
    assert "no number" in values["error"]


def test_the_summary_counts_and_averages():
    base = {"setting": "accelerators", "k": 2, "cpu_s": 1.0}
    rows = [
        base | {"objective": 4.0, "bound": 1.0, "status": "feasible"},
        base | {"objective": 2.0, "bound": 2.0, "status": "optimal", "cpu_s": 3.0},
        base | {"objective": None, "bound": None, "status": "error", "cpu_s": None},
    ]
    assert proof.summary(rows) == [
        {"k": "2", "rows": 3, "proven": 1, "without_bound": 1, "bound_over_objective": 0.5, "max_cpu_s": 3.0}
    ]


def test_rows_are_written_as_a_list(tmp_path):
    proof.write_rows([{"instance": "a", "k": 2}], tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text()) == [{"instance": "a", "k": 2}]
    assert json.loads((tmp_path / "rows.machine.json").read_text())["python"]


def test_a_folder_without_instances_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no instance"):
        instances.find_instances([tmp_path])


def test_there_are_exports_of_many_models():
    assert len(EXPORTS) >= 22
    assert sum(path.stat().st_size for path in EXPORTS.values()) < MOST_BYTES


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_are_problems_with_work(name):
    problem = instances.load_instance(EXPORTS[name])
    seconds = [cost.forward_s for cost in problem.profiles[0].tables[0].layers.values()]
    assert 50 <= len(problem.index) <= MOST_OPERATORS
    assert 1e-4 < sum(seconds) < 1.0
    assert all(tensor.bytes_per_sample > 0 for tensor in problem.index.tensors)
    assert len(problem.cluster.devices) == 8


def test_gpt2_has_its_parameters():
    """124,439,808, and the embedding once more in the head that is tied to it."""
    problem = instances.load_instance(EXPORTS["transformers/gpt2"])
    assert sum(layer.parameter_bytes for layer in problem.graph.layers) == 2 * (124_439_808 + 50_257 * 768)


def test_long_chains_have_linearly_many_ideals():
    counts = [ideals_of(long_graphs.long_chain(size)) for size in (100, 200, 300)]
    assert counts[2] - counts[1] == counts[1] - counts[0]
    assert counts[0] < 200


def test_parallel_chains_have_their_square():
    assert ideals_of(long_graphs.parallel_chains(6)) == 49


def ideals_of(shape):
    problem = long_graphs.problem_of(shape, 2)
    return len(enumerate_ideals(group_layers(GraphIndex(problem.graph)), 10_000))


def test_a_point_of_the_scale_benchmark():
    case = scale.Case(sweep="layers", shape="chain", size=30, layers=30, devices=4)
    row = scale.measure(case, limit_s=60, memory_gib=8)
    assert row["stages"] == 4
    assert row["gap"] >= 0
    assert row["objective_kind"] == Objective.THROUGHPUT.value


def test_the_picture_is_svg_with_a_line_per_objective():
    base = {"sweep": "layers", "objective_kind": "throughput", "objective": 1.0, "rss_mib": 50.0}
    drawn = scale.picture([base | {"layers": n, "cpu_s": n / 100} for n in (32, 128)])
    root = ET.fromstring(drawn)
    assert len(root.findall(".//{http://www.w3.org/2000/svg}circle")) == 4


@pytest.mark.parametrize(("schedule", "virtual"), estimates.SCHEDULES_TIMED)
def test_timed_layouts_need_no_engine(schedule, virtual):
    row = estimates.measure(schedule, virtual, 2, 4, 3)
    assert row["fallback"] == 0
    assert row["per_minute"] > 0
    assert set(row) == set(estimates.COLUMNS)


def test_timed_layouts_differ_in_their_cuts():
    problem = estimates.problem_of(2, 4)
    plans = list(estimates.layouts(problem, "zb_v", 2, 2, 5))
    assert len({tuple(stage.layers for stage in plan.stages) for plan in plans}) == 5


def test_axes_are_logarithmic():
    axis = plots._Axis([10, 1000], 0, 300)
    assert axis.ticks() == [10, 100, 1000, 10_000]
    assert axis(100) == pytest.approx(100)
    assert math.isclose(axis(10), 0)


@pytest.mark.parametrize("path", tables.PAGES, ids=lambda path: path.stem)
def test_the_pages_show_the_committed_results(path):
    page = path.read_text()
    assert tables.filled(page, tables.RESULTS) == page, "run: python -m benchmarks.tables"


def test_a_section_is_filled_from_its_rows(tmp_path):
    row = {
        "instance": "a", "k": 2, "setting": "accelerators", "status": "feasible", "objective": 2.0, "bound": 1.0,
        "gap": 1.0, "cpu_s": 0.5, "rss_mib": 50.0,
    }  # fmt: skip
    proof.write_rows([row], tmp_path / "proof-published.json")
    page = "before\n<!-- proof-published -->\nold\n<!-- end -->\nafter\n"
    made = tables.filled(page, tmp_path)
    assert made.startswith("before\n<!-- proof-published -->\n")
    assert made.endswith("<!-- end -->\nafter\n")
    assert "| a | 2.0000 (0.5, gap 1e+02 %) |" in made
    assert "old" not in made


def test_a_section_without_results_stays(tmp_path):
    page = "<!-- scale -->\nold\n<!-- end -->"
    assert tables.filled(page, tmp_path) == page
