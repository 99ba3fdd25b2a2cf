"""Which weights a new engine reads: its model's own, or those that were kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nanovllm.model.loader import weight_files
from nanovllm.resilience.errors import ResilienceError, WeightsChangedError
from nanovllm.resilience.kept_weights import Weights
from tests.serving_tools import FOLDER


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER, tmp_path / "model")
    return tmp_path / "model"


def damage(folder: Path) -> str:
    """One bit of the weights; the file's name."""
    path = weight_files(folder)[0]
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    return path.name


def test_the_kept_version_is_read_where_the_first_has_changed(folder: Path, tmp_path: Path) -> None:
    weights = Weights(folder, tmp_path / "kept" / "here")
    assert weights.readable() == folder
    name = damage(folder)
    assert weights.readable() == tmp_path / "kept" / "here"
    assert (tmp_path / "kept" / "here" / "config.json").exists()
    damage(folder)  # the bit is right again
    assert weights.readable() == folder
    (folder / name).unlink()
    assert weights.readable() == tmp_path / "kept" / "here"
    damage(tmp_path / "kept" / "here")
    with pytest.raises(WeightsChangedError, match=rf"{name} in .*model, and in .*here, changed"):
        weights.readable()


def test_without_a_kept_version_nothing_else_is_read(folder: Path) -> None:
    weights = Weights(folder)
    name = damage(folder)
    with pytest.raises(WeightsChangedError, match=rf"{name} in .*model changed while"):
        weights.readable()


def test_a_copy_that_is_there_is_taken_and_another_is_not(folder: Path, tmp_path: Path) -> None:
    Weights(folder, tmp_path / "kept")
    [kept] = weight_files(tmp_path / "kept")
    before = kept.stat().st_mtime_ns
    Weights(folder, tmp_path / "kept")
    assert kept.stat().st_mtime_ns == before
    damage(tmp_path / "kept")
    with pytest.raises(ResilienceError, match="other files than a copy"):
        Weights(folder, tmp_path / "kept")
    for name in ("adapter.safetensors", "notes.txt"):  # a copy does not come among other things
        other = tmp_path / name / "other"
        other.mkdir(parents=True)
        (other / name).touch()
        with pytest.raises(ResilienceError, match="other files than a copy"):
            Weights(folder, other)
        assert [path.name for path in other.iterdir()] == [name]
    (tmp_path / "kept" / "config.json").unlink()  # what was not copied to its end is
    (tmp_path / "kept" / "config.json.part").touch()
    damage(tmp_path / "kept")
    Weights(folder, tmp_path / "kept")
    assert (tmp_path / "kept" / "config.json").is_file()


def test_nothing_of_anybody_is_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "config.json").write_text("of another model")
    with pytest.raises(ResilienceError, match="other files than a copy"):
        Weights(folder, tmp_path / "kept")
    assert (tmp_path / "kept" / "config.json").read_text() == "of another model"
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["config.json"]


def test_the_models_own_folder_keeps_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    for same in (folder, tmp_path / "link"):
        with pytest.raises(ResilienceError, match="the model's own folder"):
            Weights(folder, same)


def test_a_folder_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResilienceError, match=r"cannot be kept in .*file"):
        Weights(folder, tmp_path / "file")
