"""Folders, packed files and files that are no text: what is looked at, and what is refused."""

import gzip

import pytest

from planner.errors import InputError
from profiles.importers import IMPORTERS, ImportOptions, reading
from profiles.importers.base import FilesImporter
from profiles.importers.reading import read_path

NODE = "node1 -- op -- forward_compute_time=1, backward_compute_time=2, activation_size=4, parameter_size=8"


def test_what_is_no_business_of_files_is_left_to_others(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "graph.txt").write_text(NODE)
    assert read_path(tmp_path) is None
    assert read_path(tmp_path / "graph.txt") is None
    assert read_path(tmp_path / "missing") is None
    assert read_path(tmp_path, format="transformers") is None


def test_a_folder_of_a_single_file_format_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder, and the format pipedream is one file: give the file"):
        read_path(tmp_path, format="pipedream")


def test_an_empty_folder_is_refused_by_its_format(tmp_path):
    for importer in IMPORTERS:
        if isinstance(importer, FilesImporter):
            with pytest.raises(InputError):
                read_path(tmp_path, format=importer.name)


def test_hidden_and_deep_files_are_not_looked_at(tmp_path):
    deep = tmp_path.joinpath(*"abcdefghij")
    deep.mkdir(parents=True)
    (deep / "llm_info.json").write_text("{}")
    (tmp_path / ".models.yml").write_text("{}")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "models.yml").write_text("{}")
    assert list(reading._paths(tmp_path)) == []


def test_links_out_of_the_folder_lead_nowhere(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "models.yml").write_text("{}")
    (inside / "more").symlink_to(outside)
    assert list(reading._paths(inside)) == []


def test_too_many_or_too_large_files_are_refused(tmp_path, monkeypatch):
    for number in range(4):
        (tmp_path / f"{number}.onnx").write_bytes(bytes(10))
    monkeypatch.setattr(reading, "MAX_ENTRIES", 3)
    with pytest.raises(InputError, match="has more than 3 files"):
        read_path(tmp_path)
    monkeypatch.setattr(reading, "MAX_ENTRIES", 10)
    monkeypatch.setattr(reading, "MAX_TOTAL_BYTES", 25)
    with pytest.raises(InputError, match=r"2\.onnx' has more than 5 bytes"):
        read_path(tmp_path)


def test_a_packed_text_is_read_with_its_options(tmp_path):
    path = tmp_path / "graph.txt.gz"
    path.write_bytes(gzip.compress(NODE.encode()))
    model = read_path(path, options=ImportOptions(minibatch_size=4))
    assert model.profiles[0].tables[0].microbatch_size == 4
    assert read_path(path, format="pipedream") == read_path(path)


def test_packed_bombs_and_garbage_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "graph.txt.gz"
    path.write_bytes(gzip.compress(bytes(1000)))
    monkeypatch.setattr(reading, "MAX_TOTAL_BYTES", 400)
    with pytest.raises(InputError, match="unpacks to more than 100 bytes"):
        read_path(path)
    path.write_bytes(gzip.compress(b"\xff" * 8))
    with pytest.raises(InputError, match="unpacks to what is not UTF-8 text"):
        read_path(path)
    path.write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(InputError, match="is no whole gzip file"):
        read_path(path)
