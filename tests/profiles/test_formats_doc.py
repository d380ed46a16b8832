"""docs/formats.md is true: its examples are read, and its lists of fields are those of the nouns."""

import dataclasses
import re
from pathlib import Path

import pytest

from planner import cluster, codec, graph, options, plan, problem, profile, result, workload
from profiles import catalogue, model
from profiles.clusters import parse_cluster, parse_short_form
from profiles.importers import IMPORTERS, read_text
from profiles.nodes import DeviceGroup, NodeGroup
from profiles.sources import build_problem

TEXT = (Path(__file__).parent.parent.parent / "docs" / "formats.md").read_text()
NOUNS = {
    noun.__name__: noun
    for noun in (
        graph.LayerGraph, graph.Layer, graph.Edge, graph.TiedParameters, model.ProfiledModel, profile.Profile,
        profile.CostTable, profile.Measurement, profile.LayerCost,
        profile.Provenance, model.ModelSource, model.ModelRecord, model.LayerWork,
        cluster.Cluster, cluster.DeviceType, cluster.Device, cluster.Link, workload.Training, workload.Inference,
        problem.Problem, options.SearchOptions, plan.Plan, plan.Stage, result.PlanResult,
    )
}  # fmt: skip


def examples(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def paragraph(name):
    """The paragraph that begins with the noun's name in bold."""
    return re.search(rf"^\*\*`{name}`\*\*(.*?)(?=\n\n)", TEXT, re.MULTILINE | re.DOTALL)[1]


@pytest.mark.parametrize("name", NOUNS)
def test_every_field_of_a_noun_is_listed(name):
    listed = set(re.findall(r"`(\w+)`", paragraph(name)))
    fields = {field.name for field in dataclasses.fields(NOUNS[name])}
    assert fields <= listed


def test_every_noun_of_the_page_is_checked():
    assert set(re.findall(r"^\*\*`(\w+)`\*\*", TEXT, re.MULTILINE)) == set(NOUNS)


def test_the_fields_of_node_groups_are_listed():
    section = TEXT[TEXT.index("- `nodes`") : TEXT.index("- `device_types` need")]
    fields = {field.name for noun in (NodeGroup, DeviceGroup) for field in dataclasses.fields(noun)}
    assert fields <= set(re.findall(r"`(\w+)`", section))


def test_the_examples_are_documents_that_fit_together():
    first, second = examples("json")
    problem_of = build_problem(read_text(first), None, None)
    example = codec.loads(plan.Plan, second)
    assert {layer for stage in example.stages for layer in stage.layers} == set(problem_of.index.position)
    assert example.microbatch_size * example.num_microbatches == problem_of.workload.global_batch_size


def test_the_cluster_file_is_read(tmp_path):
    (text,) = examples("toml")
    path = tmp_path / "lab.toml"
    path.write_text(text)
    found = parse_cluster(str(path))
    assert len(found.devices) == 2 * 8 + 6 + 1
    assert "workstation" in {device.id for device in found.devices}


def test_the_graph_file_is_read():
    (text,) = [t for t in examples("text") if "forward_compute_time" in t]
    node = text.splitlines()[0]
    found = read_text("\n".join((node.replace("node2", "node1"), text)))
    assert found.graph.edges[0].bytes_per_sample == 822083584


def test_short_forms_are_clusters():
    section = TEXT[TEXT.index("### Short forms") : TEXT.index("A device type brings")]
    forms = re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)
    assert len(forms) == 5
    assert all(parse_short_form(form).devices for form in forms)


def test_the_default_networks_are_those_of_the_page():
    fabrics = {name: catalogue.interconnect(name) for name in catalogue.device_type_names()}
    for name in ("A100-40G-SXM", "A100-80G-SXM", "H100-80G-SXM", "H200-141G", "B200"):
        wanted = "infiniband-hdr-200" if name.startswith("A100") else "infiniband-ndr-400"
        assert (fabrics[name].fabric_link, fabrics[name].fabric_per) == (wanted, "device")
    for name in ("V100-16G", "V100-32G", "A100-80G-PCIe", "H100-80G-PCIe", "L4", "L40S", "T4", "RTX-3090", "RTX-4090"):
        assert (fabrics[name].fabric_link, fabrics[name].fabric_per) == ("ethernet-100", "node")


def test_every_importer_has_a_section():
    section = TEXT[TEXT.index("## Profiles of others") :]
    assert set(re.findall(r"^### `([\w-]+)`", section, re.MULTILINE)) == set(IMPORTERS.names())
