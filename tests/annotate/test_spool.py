import json
import threading
from pathlib import Path


def rows(spool):
    spool.close()
    _, *lines = Path(spool.path).read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_rows_are_spans_with_name_payload_thread_and_kind(runtime, tmp_path):
    spool = runtime("spool").Spool(str(tmp_path))
    spool.push("outer", 7)
    spool.push("inner")
    spool.pop()
    spool.pop()
    token = spool.start("step", 2)
    spool.mark("batch", 0.5)
    spool.end(token)
    spool.collective(10, 20, "allreduce", 64, 5, {"dtype": "float32"})
    inner, outer, mark, step, collective = rows(spool)
    me = threading.get_native_id()
    assert inner[2:] == ["inner", 0, me, "p"]
    assert outer[2:] == ["outer", 7, me, "p"]
    assert outer[0] <= inner[0] <= inner[1] <= outer[1]
    assert mark[1:] == [None, "batch", 0.5, me, "m"]
    assert step[2:] == ["step", 2, me, "s"]
    assert step[0] <= mark[0] <= step[1]
    assert collective == [10, 20, "allreduce", 64, 5, "c", {"dtype": "float32"}]


def test_threads_do_not_mix_their_ranges_nor_lose_any(runtime, tmp_path):
    spool = runtime("spool").Spool(str(tmp_path))

    def work(name):
        for i in range(500):
            spool.push(name, i)
            spool.pop()
            if i % 100 == 0:
                spool.flush()

    threads = [threading.Thread(target=work, args=(f"thread {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = rows(spool)
    for i in range(4):
        mine = [row for row in found if row[2] == f"thread {i}"]
        assert [row[3] for row in mine] == list(range(500))
        assert len({row[4] for row in mine}) == 1


def test_a_folder_that_is_gone_is_said_once_and_stops_nothing(runtime, tmp_path, capsys):
    spool = runtime("spool").Spool(str(tmp_path / "gone"))
    for _ in range(2):
        spool.push("x")
        spool.pop()
        spool.flush()
    spool.close()
    said = capsys.readouterr().err
    assert said.count("events are lost; cannot write") == 1


def test_what_grows_without_end_is_thinned_and_counted(runtime, tmp_path, monkeypatch):
    module = runtime("spool")
    monkeypatch.setattr(module, "_ROWS_PER_HALVING", 10)
    spool = module.Spool(str(tmp_path))
    for i in range(40):
        for name in ("mine", "forward"):
            spool.push(name, i)
            spool.pop()
        if i % 5 == 4:
            spool.flush()
    found = rows(spool)
    kept = [row[3] for row in found if row[2] == "mine"]
    assert [row[3] for row in found if row[2] == "forward"] == list(range(40))  # the hooks' own
    assert kept[:5] == [0, 1, 2, 3, 4]
    # Ten rows are there: every second one until there are ten more of them, then every fourth.
    assert kept[5:] == [5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 29, 33, 37]
    notes = [row for row in found if row[2] == "traceprof.thinned:mine"]
    assert notes[-1][3] == 40 - len(kept)


def test_what_tells_steps_and_pauses_is_never_thinned(runtime, tmp_path, monkeypatch):
    module = runtime("spool")
    monkeypatch.setattr(module, "_ROWS_PER_HALVING", 1)
    spool = module.Spool(str(tmp_path))
    own = ["optimizer#2", "optimizer.skipped#12", "data.end", "gradients.kept", "gc", "compile"]
    for _ in range(40):
        for name in own:
            spool.push(name)
            spool.pop()
        spool.flush()
    found = rows(spool)
    assert [row[2] for row in found if row[5] == "p"] == 40 * own


def test_many_names_are_thinned_together(runtime, tmp_path, monkeypatch):
    module = runtime("spool")
    monkeypatch.setattr(module, "_ROWS_PER_HALVING", 1)
    monkeypatch.setattr(module, "_MAX_NAMES", 2)
    spool = module.Spool(str(tmp_path))
    for i in range(100):
        spool.push(f"work {i}")
        spool.pop()
        spool.flush()
    found = rows(spool)
    assert len([row for row in found if row[5] == "p"]) < 20
    assert {row[2] for row in found if row[5] == "m"} == {"traceprof.thinned:other names"}
