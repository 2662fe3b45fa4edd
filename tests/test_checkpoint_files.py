"""A folder of checkpoints: what is written and cleaned up, a full disk, files that are damaged or of others."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import small
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.monitor import Monitor
from walk import Walk

from sb3_cir import CIR
from sb3_cir.callbacks import Checkpoint
from sb3_cir.runs import checkpoint, files, rows, state
from sb3_cir.runs.files import checkpoints


def test_only_changed_blocks_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the ring turns, a checkpoint writes the blocks with new rows, and nothing useless is kept."""
    monkeypatch.setattr(rows, "BLOCK_BYTES", 1)
    monkeypatch.setattr(rows, "BLOCKS", 12)  # of six rows each
    written, kept = [], []

    class Sizes(BaseCallback):
        def _on_step(self) -> bool:
            there = list((tmp_path / "transitions").glob("*")) if (tmp_path / "transitions").exists() else []
            if self.num_timesteps % 10 == 1 and there:
                written.append(len([path for path in there if f"_{self.num_timesteps - 1}_" in path.name]))
                kept.append(len(there))
            return True

    model = small(Walk(), buffer_size=60, learning_starts=1000)
    model.learn(333, callback=[Checkpoint(10, tmp_path), Sizes()])
    assert len(written) == 33
    assert all(number in (2, 3) for number in written)
    assert max(kept) <= 10 + 3
    for step, path in checkpoints(tmp_path):
        for_step = CIR.resume(path, Walk())
        order = (np.arange(60) + for_step.replay_buffer.pos) % 60
        assert for_step.num_timesteps == step
        np.testing.assert_array_equal(for_step.replay_buffer.observations[order, 0, 1], np.arange(step - 60, step) % 23)
    assert [step for step, _ in checkpoints(tmp_path)] == [333, 330]


@pytest.mark.parametrize(
    ("what", "how"),
    [
        *(("step_60.zip", how) for how in ("cut", "altered")),
        *(("transitions/replay_60_*.safetensors", how) for how in ("cut", "altered", "deleted")),
    ],
)
def test_damaged(what: str, how: str, tmp_path: Path) -> None:
    model = small(Walk()).learn(60, callback=Checkpoint(30, tmp_path))
    (path,) = tmp_path.glob(what)
    if how == "cut":
        os.truncate(path, path.stat().st_size - 100)
    elif how == "altered":
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
    with pytest.warns(UserWarning, match=r"step_60.zip is damaged \(.*\): going back to the checkpoint before it"):
        found = CIR.resume(tmp_path, Walk())
    assert found.num_timesteps == 30
    # The damaged one is gone when there is a new one, and counts for nothing.
    found.learn(45, callback=Checkpoint(15, tmp_path))
    assert [step for step, _ in checkpoints(tmp_path)] == [45, 30]
    assert CIR.resume(tmp_path, Walk()).num_timesteps == 45
    for path in tmp_path.glob("step_*.zip"):
        path.write_bytes(b"nothing")
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(FileNotFoundError, match=r"can be read \(damaged: step_45.zip, step_30.zip; moved"),
    ):
        CIR.resume(tmp_path, Walk())
    assert model.num_timesteps == 60


def test_a_damaged_one_that_was_named(tmp_path: Path) -> None:
    small(Walk()).learn(60, callback=Checkpoint(30, tmp_path))
    (tmp_path / "step_30.zip").write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(FileNotFoundError, match="newer ones are there"):
        CIR.resume(tmp_path / "step_30.zip", Walk())


@pytest.mark.parametrize("what", ["step_37.zip", "transitions/replay_37_*.safetensors"])
def test_going_on_behind_a_damaged_one(what: str, tmp_path: Path) -> None:
    """It counts for nothing, though it is between the one that is gone back to and the next."""
    small(Walk()).learn(37, callback=Checkpoint(30, tmp_path))
    (path,) = tmp_path.glob(what)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.warns(UserWarning, match=r"step_37.zip is damaged"):
        model = CIR.resume(tmp_path, Walk())
    model.learn(60, callback=Checkpoint(30, tmp_path))
    assert [step for step, _ in checkpoints(tmp_path)] == [60, 30]
    assert [CIR.resume(path, Walk()).num_timesteps for _, path in checkpoints(tmp_path)] == [60, 30]


def test_a_future_that_was_left(tmp_path: Path) -> None:
    small(Walk()).learn(37, callback=Checkpoint(30, tmp_path))
    CIR.resume(tmp_path / "step_30.zip", Walk()).learn(60, callback=Checkpoint(30, tmp_path))
    assert [step for step, _ in checkpoints(tmp_path)] == [60, 30]


def test_no_such_step(tmp_path: Path) -> None:
    small(Walk()).learn(40, callback=Checkpoint(20, tmp_path))
    with pytest.raises(FileNotFoundError, match=r"step_30.zip: there is no such checkpoint \(steps in this folder: 40, 20\)"):
        CIR.resume(tmp_path / "step_30.zip", Walk())


def test_files_of_others_stay(tmp_path: Path) -> None:
    names = ["expert_demos.npz", "notes.txt", "replay_20.npz"]
    (tmp_path / "transitions").mkdir()
    for name in names:
        (tmp_path / "transitions" / name).write_text("mine")
    small(Walk()).learn(80, callback=Checkpoint(20, tmp_path))
    assert all((tmp_path / "transitions" / name).read_text() == "mine" for name in names)


def test_a_model_that_is_called_as_a_checkpoint_stays(tmp_path: Path) -> None:
    """It is whole, and somebody's own."""

    class SavesThere(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 15:
                self.model.save(tmp_path / "step_15.zip")
            return True

    small(Walk()).learn(60, callback=[Checkpoint(20, tmp_path), SavesThere()])
    assert CIR.load((tmp_path / "step_15.zip").rename(tmp_path / "mine.zip"), device="cpu").num_timesteps == 15


def test_interrupted_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is in its place, and what belongs to it stays."""
    write_whole = files.write_whole

    def interrupted(path: Path, content: bytes) -> None:
        write_whole(path, content)
        if path.name == "step_20.zip":
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_whole", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small(Walk()).learn(60, callback=Checkpoint(20, tmp_path))
    assert CIR.resume(tmp_path, Walk(), device="cpu").num_timesteps == 20


def test_no_memory_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(files, "pack", fails)
    with pytest.warns(UserWarning, match="step 20 in .*: there is no memory left for it; the last good one is none"):
        assert small(Walk()).learn(25, callback=Checkpoint(20, tmp_path)).num_timesteps == 25


def test_more_episodes_than_a_reader_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ones are in it. One that could not be read again is not written, and those before it stay."""
    model = small(Walk(), learning_starts=1000, stats_window_size=200_000)
    model.learn(20, callback=Checkpoint(20, tmp_path))
    model.ep_info_buffer.extend(dict(r=float(number), l=1, t=0.0) for number in range(130_000))
    model.learn(20, callback=Checkpoint(20, tmp_path), reset_num_timesteps=False)
    resumed = CIR.resume(tmp_path, Walk(), device="cpu")
    assert resumed.num_timesteps == 40
    assert len(resumed.ep_info_buffer) == state.EPISODES
    assert resumed.ep_info_buffer[-1]["r"] >= 129_997 or resumed.ep_info_buffer[-1]["l"] > 1
    monkeypatch.setattr(state, "EPISODES", 130_000)
    with pytest.warns(UserWarning, match=r"step 60 in .*values, 500000 are allowed; the last good one is step 40"):
        model.learn(20, callback=Checkpoint(20, tmp_path), reset_num_timesteps=False)
    assert [step for step, _ in checkpoints(tmp_path)] == [40, 20]


def test_where_no_checkpoint_would_be_written(tmp_path: Path) -> None:
    """SB3 never tells a callback of a new best that training begins."""
    evaluation = EvalCallback(Monitor(Walk()), callback_on_new_best=Checkpoint(20, tmp_path), eval_freq=30, verbose=0)
    with pytest.raises(ValueError, match=r"Checkpoint: it must be one of learn\(\)'s own callbacks"):
        small(Walk(), learning_starts=1000).learn(60, callback=evaluation)
    with pytest.raises(ValueError, match="a PPO cannot be resumed; only off-policy algorithms can"):
        PPO("MlpPolicy", Walk(), device="cpu").learn(10, callback=Checkpoint(20, tmp_path))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(ValueError, match=f"{tmp_path}: this is a folder"):
            CIR.load(tmp_path, trusted=False)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("every", [np.nan, "100", 0])
def test_an_interval_that_is_none(every: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"every={every!r}: it must be a whole number of at least 1\."):
        Checkpoint(every, tmp_path)


@pytest.mark.parametrize("what", ["", "transitions"])
def test_folder_emptied_between_two_runs(what: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    model = small(Walk()).learn(40, callback=Checkpoint(20, folder))
    shutil.rmtree(folder / what)
    model.learn(40, callback=Checkpoint(20, folder), reset_num_timesteps=False)
    found = CIR.resume(folder, Walk())
    assert found.num_timesteps == 80
    np.testing.assert_array_equal(found.replay_buffer.observations, model.replay_buffer.observations)


def test_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any of the files of a checkpoint; the next one has all that the failed one was to have."""
    fsync = os.fsync
    for failing in (1, 2, 3):
        folder, calls = tmp_path / str(failing), []

        def full(handle: int, failing=failing, calls=calls) -> None:
            calls.append(handle)
            # A checkpoint flushes four times: rows, their folder, the rest, its folder.
            if len(calls) == 4 + failing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(handle)

        monkeypatch.setattr(os, "fsync", full)
        model = small(Walk())
        with pytest.warns(UserWarning, match="disk is full") as warned:
            model.learn(45, callback=Checkpoint(15, folder))
        monkeypatch.setattr(os, "fsync", fsync)
        said = [str(each.message) for each in warned if "checkpoint" in str(each.message)]
        last = 15
        assert said == [
            f"No checkpoint of step 30 in {folder}: the disk is full; the last good one is step {last}, training goes on and "
            "the next try is at step 45."
        ]
        assert not list(folder.rglob("*.part"))
        (good,) = (path for step, path in checkpoints(folder) if step == last)
        assert CIR.resume(good, Walk()).num_timesteps == last
        found = CIR.resume(folder, Walk())
        assert found.num_timesteps == 45
        np.testing.assert_array_equal(found.replay_buffer.observations, model.replay_buffer.observations)


def test_a_checkpoint_that_cannot_be_read_counts_for_nothing(tmp_path: Path) -> None:
    """Also where only what it says of callbacks cannot be: an older one is kept in its place."""

    class Spoil(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 45:
                path = tmp_path / "step_40.zip"
                members = files.unpack_archive(path.read_bytes(), "")
                said = json.loads(members["manifest.json"])
                said["callbacks"]["Spoil"] = [{"n_calls": -1}]
                path.write_bytes(files.pack_archive(members | {"manifest.json": json.dumps(said)}).getvalue())
            return True

    small(Walk()).learn(60, callback=[Checkpoint(20, tmp_path), Spoil()])
    assert [step for step, _ in checkpoints(tmp_path)] == [60, 20]


def test_a_folder_that_is_removed_or_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made again; and a relative one stays where it was when the callback was made."""

    class Leave(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 25:
                shutil.rmtree(tmp_path / "relative")
                monkeypatch.chdir("/")
            return True

    monkeypatch.chdir(tmp_path)
    small(Walk()).learn(40, callback=[Checkpoint(20, "relative"), Leave()])
    assert CIR.resume(tmp_path / "relative", Walk()).num_timesteps == 40


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    model = small(Walk()).learn(30, callback=Checkpoint(30, tmp_path / "folder"))
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"model\.zip is no checkpoint: a model that was saved is loaded by load\(\)"):
        CIR.resume(tmp_path / "model.zip", Walk())
    with pytest.raises(ValueError, match=r"step 30 of this model's earlier learn\(\), and the count begins anew"):
        model.learn(30, callback=Checkpoint(30, tmp_path / "folder"))


def test_checkpoints_that_are_mixed_up(tmp_path: Path) -> None:
    for name in "ab":
        small(Walk()).learn(60, callback=Checkpoint(20, tmp_path / name))
    shutil.copy(tmp_path / "a/step_40.zip", tmp_path / "a/step_60.zip")
    with pytest.warns(UserWarning, match=r"step_60.zip is damaged \(it is of step 40, which is not its name\)"):
        assert CIR.resume(tmp_path / "a", Walk()).num_timesteps == 40
    shutil.copy(tmp_path / "a/step_40.zip", tmp_path / "b/step_40.zip")
    with pytest.raises(ValueError, match=r"step_60.zip and step_40.zip are of two runs \(.*\): name the file to go on from"):
        CIR.resume(tmp_path / "b", Walk())
    assert CIR.resume(tmp_path / "b/step_60.zip", Walk()).num_timesteps == 60


def test_what_cannot_be_read_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may not read the newest one is told, and it is not deleted."""
    small(Walk()).learn(40, callback=Checkpoint(20, tmp_path))
    real = os.open

    def refuse(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith("step_40.zip"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError, match="Permission denied: it cannot be read, so whether it is whole is not known"):
        CIR.resume(tmp_path, Walk())
    CIR.resume(tmp_path / "step_20.zip", Walk()).learn(30, callback=Checkpoint(10, tmp_path))
    assert [step for step, _ in checkpoints(tmp_path)] == [40, 30, 20]
    monkeypatch.undo()
    assert CIR.resume(tmp_path / "step_40.zip", Walk()).num_timesteps == 40  # its rows are there too


@pytest.mark.parametrize("keep", [1, 3])
def test_how_many_are_kept(keep: int, tmp_path: Path) -> None:
    small(Walk(), learning_starts=1000).learn(80, callback=Checkpoint(20, tmp_path, keep=keep))
    assert [step for step, _ in checkpoints(tmp_path)] == [80, 60, 40][:keep]


def test_another_runs_checkpoint_stays(tmp_path: Path) -> None:
    for name, steps in (("ours", 60), ("theirs", 40)):
        small(Walk(), learning_starts=1000).learn(steps, callback=Checkpoint(20, tmp_path / name, keep=1))
    for path in (tmp_path / "theirs").glob("**/*.*"):
        shutil.copy(path, tmp_path / "ours" / path.relative_to(tmp_path / "theirs"))
    CIR.resume(tmp_path / "ours" / "step_60.zip", Walk()).learn(100, callback=Checkpoint(20, tmp_path / "ours"))
    assert [step for step, _ in checkpoints(tmp_path / "ours")] == [100, 80, 40]
    assert CIR.resume(tmp_path / "ours" / "step_40.zip", Walk()).num_timesteps == 40


def test_nothing_is_left_of_what_could_not_be_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a disk that fills while a checkpoint is written, of a process that was killed, and of the lock."""
    fsync, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) >= 7:  # amid the second checkpoint
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    (tmp_path / "transitions").mkdir()
    left = [folder / ".step_20.zip.77.part" for folder in (tmp_path, tmp_path / "transitions")]
    for path in left:
        path.touch()
    monkeypatch.setattr(os, "fsync", full)
    saver = Checkpoint(15, tmp_path)
    with pytest.warns(UserWarning, match="disk is full"):
        small(Walk()).learn(30, callback=saver)
    named = {block.file for block in checkpoint.read(tmp_path).manifest.buffers["replay"].blocks}
    assert {path.name for path in (tmp_path / "transitions").iterdir()} == named
    assert not any(path.exists() for path in left)
    opened = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    assert str(tmp_path / ".lock") not in opened


def test_blocks_that_are_no_whole_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BLOCK_BYTES", 300)
    small(Walk(), learning_starts=1000).learn(60, callback=Checkpoint(60, tmp_path))
    saved = checkpoint.read(tmp_path).manifest.buffers["replay"]
    assert len(saved.blocks) > 2
    for blocks, message in ((saved.blocks[::-1], "begins at row"), (saved.blocks[:-1], "has come to 60")):
        with pytest.raises(files.DamagedError, match=message):
            rows.check_blocks(saved.model_copy(update=dict(blocks=blocks)), tmp_path, set())


def test_version_0_1_is_refused(tmp_path: Path) -> None:
    small(Walk()).learn(20, callback=Checkpoint(20, tmp_path))
    path = tmp_path / "step_20.zip"
    path.write_bytes(files.pack_archive({"manifest.json": '{"format": 1}', "state.pt": b""}).getvalue())
    with pytest.raises(ValueError, match=r"version 0\.1 wrote it; this version cannot resume it, finish the run with 0\.1"):
        CIR.resume(tmp_path, Walk())
