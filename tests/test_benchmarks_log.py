"""The log's files: what is read from folders and files, and that a file is replaced as a whole."""

import pandas as pd
import pytest

log = pytest.importorskip("benchmarks.log", reason="needs pandas, of the benchmarks extra")


def rows(seed, steps=(100, 200), value=1.0, method="cir", task="walker-walk"):
    return pd.DataFrame([(method, task, seed, "avg_return", step, value) for step in steps], columns=log.COLUMNS)


def test_a_folder_is_read_in_natural_order(tmp_path):
    for seed in (10, 2, 1):
        (tmp_path / f"seed_{seed}").mkdir()
        log.write(tmp_path / f"seed_{seed}" / "rows.csv", rows(seed))
    assert list(log.read([tmp_path]).seed.unique()) == [1, 2, 10]


def test_what_is_no_log_is_left_out_of_a_folder_and_refused_as_a_file(tmp_path):
    log.write(tmp_path / "rows.csv", rows(1))
    other = tmp_path / "0.monitor.csv"
    other.write_text('#{"t_start": 1.0}\nr,l,t\n1,2,3\n')
    (tmp_path / ".part_7").mkdir()
    log.write(tmp_path / ".part_7" / "rows.csv", rows(2))
    assert set(log.read([tmp_path]).seed) == {1}
    with pytest.raises(ValueError, match=r"monitor\.csv.*exp_name"):
        log.read([other])


def test_the_order_of_columns_and_further_columns_do_not_matter(tmp_path):
    table = rows(3)[log.COLUMNS[::-1]].assign(host="a")
    table.to_csv(tmp_path / "theirs.csv", index=False)
    assert list(log.read([tmp_path / "theirs.csv"]).columns) == log.COLUMNS


def test_a_file_that_is_named_twice_counts_once(tmp_path):
    log.write(tmp_path / "rows.csv", rows(1))
    assert len(log.read([tmp_path, tmp_path / "rows.csv"])) == 2


def test_of_rows_that_stand_twice_the_last_counts_with_a_warning(tmp_path):
    log.write(tmp_path / "a.csv", rows(1, value=1.0))
    log.write(tmp_path / "b.csv", rows(1, value=2.0))
    with pytest.warns(UserWarning, match="cir on walker-walk, seed 1"):
        assert set(log.read([tmp_path]).value) == {2.0}


def test_nothing_there_is_said(tmp_path):
    with pytest.raises(ValueError, match="no log in"):
        log.read([tmp_path])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        log.read([tmp_path / "nowhere"])


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"
    log.write(path, rows(1))
    before = path.read_text()

    def full(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(log.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        log.write(path, rows(2))
    assert path.read_text() == before
