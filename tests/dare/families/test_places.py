"""Finding checkpoints: names, folders and the hub cache. Nothing here ever asks the network."""

from __future__ import annotations

import socket

import pytest
import torch
from dare_bench.dare.families import loading, places
from dare_bench.dare.families.loading import BadCheckpoint, WeightsNotHere, load
from dare_bench.dare.families.registry import UnknownName

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Opening a connection fails the test."""

    def refuse(*args, **options):
        pytest.fail("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def hub(tmp_path, monkeypatch, tiny_config):
    """A hub cache with two commits of owner/model; `main` is the newer one."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    root = tmp_path / "hub" / "models--owner--model"
    for seed, commit in ((1, OLD), (2, NEW)):
        lm = loading.from_config("sdar", tiny_config("sdar"), seed=seed)
        loading.save(lm, root / "snapshots" / commit, shard_bytes=20_000)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(NEW)
    (root / "refs" / "v1").write_text(OLD)
    return root


@pytest.mark.parametrize(("revision", "commit"), [(None, NEW), ("main", NEW), ("v1", OLD), (OLD, OLD), (NEW, NEW)])
def test_a_hub_id_is_read_from_the_cache(hub, revision, commit):
    assert places.resolve("owner/model", revision) == hub / "snapshots" / commit
    here = load("owner/model", revision=revision, device="cpu")
    assert torch.equal(here.head_weight, load(hub / "snapshots" / commit, device="cpu").head_weight)


@pytest.mark.parametrize("file", ["config.json", "model-00002-of-*", "model.safetensors.index.json"])
def test_a_snapshot_in_which_a_file_is_missing_is_not_here(hub, file):
    next((hub / "snapshots" / OLD).glob(file)).unlink()
    with pytest.raises(
        WeightsNotHere, match=rf"weights of owner/model are not on this .*`hf download owner/model --rev\w+ {OLD}`"
    ):
        load("owner/model", revision=OLD)
    assert load("owner/model", device="cpu").family.name == "sdar"


def test_links_into_the_cache_s_blobs_are_followed(hub):
    snapshot = hub / "snapshots" / NEW
    (hub / "blobs").mkdir()
    for index, path in enumerate(sorted(snapshot.iterdir())):
        blob = hub / "blobs" / str(index)
        path.rename(blob)
        path.symlink_to(blob)
    assert load("owner/model", device="cpu").family.name == "sdar"
    (hub / "blobs" / "1").unlink()  # a dangling link
    with pytest.raises(WeightsNotHere, match="hf download owner/model`"):
        load("owner/model")


def test_a_branch_that_was_never_fetched(hub):
    with pytest.raises(WeightsNotHere, match="hf download owner/model --revision v2`"):
        load("owner/model", revision="v2")


def test_how_a_folder_is_called_elsewhere(hub, tmp_path, tiny):
    assert places.portable(str(hub / "snapshots" / OLD)) == ("owner/model", OLD)
    assert places.portable("tiny-sdar") == ("tiny-sdar", None)
    assert places.portable("package:tiny-sdar") == ("package:tiny-sdar", None)
    # Of another cache than the one that is read here, or not in a cache.
    for folder in (tmp_path / "other" / "models--owner--model" / "snapshots" / OLD, tmp_path / "plain"):
        loading.save(tiny("sdar"), folder)
        assert places.portable(str(folder)) == (str(folder), None)


def test_unknown_hub_ids_say_how_to_get_them():
    with pytest.raises(
        WeightsNotHere, match=r"weights of nobody/nothing-here are not on this .*hf download nobody/not"
    ):
        load("nobody/nothing-here")
    with pytest.raises(WeightsNotHere, match=r"hf download nobody/nothing-here --revision 0123abc`"):
        load("nobody/nothing-here", revision="0123abc")
    with pytest.raises(WeightsNotHere, match="GSAI-ML/LLaDA-8B-Instruct"):
        load("llada-8b-instruct")


def test_absent_folders_and_impossible_names(tmp_path):
    with pytest.raises(WeightsNotHere, match=r"^absent/x/y: no such folder; give a folder with config\.json"):
        load("./absent/x/y")
    with pytest.raises(WeightsNotHere, match="is neither a folder nor a hub id"):
        load("owner/na me")
    with pytest.raises(WeightsNotHere, match="shipped model 'absent' is missing from this installation"):
        load("package:absent")
    with pytest.raises(BadCheckpoint, match=r"no config\.json in this folder"):
        load(tmp_path)


def test_a_misspelt_model_name_gets_a_hint():
    with pytest.raises(
        UnknownName, match=r"unknown model 'tiny-sdra'\. Did you mean 'tiny-sdar'\? Known: .*llada-1\.5, "
    ):
        load("tiny-sdra")
