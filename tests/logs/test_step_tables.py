"""Tables that programs write as they train, and event files of TensorBoard."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.logs.reading import all_runs, one_run, rows, said, shared
from traceprof.cli import app
from traceprof.errors import TraceError
from traceprof.export.tensorboard import record, scalars_event, version_event
from traceprof.logs import read_log, read_table
from traceprof.logs.tensorboard import scalars_in

S = 1e9
STATE = {
    "global_step": 4,
    "train_batch_size": 8,
    "log_history": [
        {"loss": 2.0, "learning_rate": 1e-5, "grad_norm": 0.5, "epoch": 0.5, "step": 2},
        {"loss": 1.0, "learning_rate": 1e-6, "grad_norm": 0.4, "epoch": 1.0, "step": 4},
        {"eval_loss": 1.5, "eval_accuracy": 0.75, "eval_runtime": 3.0, "epoch": 1.0, "step": 4},
        {"train_runtime": 8.0, "train_samples_per_second": 16.0, "train_loss": 1.5,
         "train_steps_per_second": 0.5, "epoch": 1.0, "step": 4},
    ],
}  # fmt: skip
RESULTS = {
    "epoch": 3.0, "eval_accuracy": 0.86, "eval_loss": 0.4, "eval_samples": 408,
    "train_loss": 0.5, "train_runtime": 60.0, "train_samples": 3668,
    "train_samples_per_second": 183.4, "train_steps_per_second": 5.75,
}  # fmt: skip
KINDS: dict[str, tuple[str, str, dict[str, float]]] = {
    "keras": ("a.csv", "epoch,accuracy,loss,val_accuracy,val_loss\n0,0.8,0.6,0.84,0.45\n"
              "1,0.87,0.4,0.88,0.39\n",
              {"last_train_top1": 0.87, "last_loss": 0.4, "best_top1": 0.88}),
    "keras ": ("history.json", '{"accuracy": [0.8, 0.87], "loss": [0.6, 0.4], "val_loss": [1, 2]}',
               {"last_train_top1": 0.87, "last_loss": 0.4, "best_val_loss": 1}),
    "keras  ": ("history.json", '{"loss": {"0": 0.6, "1": 0.4}, "val_loss": {"0": 1, "1": 2}}',
                {"last_loss": 0.4, "last_val_loss": 2}),
    "timm": ("summary.csv", "epoch,train_loss,eval_loss,eval_top1,eval_top5,lr\n"
             "0,1.5,0.6,78.4,99.3,0.05\n1,1.2,0.57,81.4,99.2,0.04\n",
             {"last_loss": 1.2, "best_val_loss": 0.57, "best_top1": 0.814, "best_top5": 0.993}),
    "ultralytics": ("results.csv", "  epoch,  time, train/box_loss, metrics/mAP50(B),"
                    " metrics/mAP50-95(B),   lr/pg0\n  1,  10.5,  1.4,  0.5,  0.3,  0.003\n"
                    "  2,  20.5,  1.3,  0.6,  0.4,  0.002\n",
                    {"last_train/box_loss": 1.3, "best_bbox/AP50": 0.6, "best_bbox/AP": 0.4}),
    "detectron2": ("metrics.json", '{"data_time": 0.004, "iteration": 19, "lr": 1, "time": 0.25, '
                   '"total_loss": 2.0}\n{"bbox/AP": 38.2, "iteration": 19}\n'
                   '{"data_time": 0.004, "iteration": 39, "lr": 1, "time": 0.5, "total_loss": 1}\n',
                   {"last_loss": 1, "step_period_ns": 0.5 * S, "best_bbox/AP": 38.2}),
    "mmengine": ("scalars.json", '{"lr": 1, "data_time": 0.01, "loss": 1.2, "time": 0.4, '
                 '"epoch": 1, "iter": 50, "memory": 10, "step": 50}\n{"accuracy/top1": 71.2, '
                 '"data_time": 9, "time": 9, "step": 1}\n',
                 {"last_loss": 1.2, "step_period_ns": 0.4 * S, "best_top1": 0.712}),
    "wandb": ("wandb.csv", '"_step","_runtime","_timestamp","train/loss","perf/samples_per_sec"\n'
              "0,1.5,1700000000,2.0,10\n10,2.5,1700000001,1.5,20\n20,3.5,1700000002,1.0,20\n",
              {"last_loss": 1, "samples_per_s": 20}),
    "mlflow": ("mlflow.csv", "run_id,key,value,step,timestamp\nr,loss,2.0,0,1700000000000\n"
               "r,loss,1.0,1,1700000001000\nr,val_accuracy,0.5,1,1700000001000\n",
               {"last_loss": 1, "best_top1": 0.5}),
    "tensorboard": ("run_a-tag-val_loss.csv", "Wall time,Step,Value\n1700000000,1,0.5\n"
                    "1700000001,2,0.25\n", {"best_val_loss": 0.25}),
    "table": ("own.jsonl", '{"step": 1, "loss": 2.0, "oddness": 3}\n{"step": 2, "loss": 1}',
              {"last_loss": 1, "last_oddness": 3}),
    "hf-trainer": ("trainer_state.json", json.dumps(STATE),
                   {"last_loss": 1, "best_val_loss": 1.5, "best_top1": 0.75, "total_ns": 8 * S,
                    "samples_per_s": 16, "batch_per_device_count": 8, "last_grad_norm": 0.4}),
    "hf-trainer ": ("all_results.json", json.dumps(RESULTS),
                    {"total_ns": 60 * S, "samples_per_s": 183.4, "train_samples_count": 3668,
                     "mean_loss": 0.5, "last_top1": 0.86}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_programs_are_recognized_and_read(kind: str, tmp_path: Path) -> None:
    name, text, measures = KINDS[kind]
    run = one_run(tmp_path, text, name)
    assert run.origin == f"log:{kind.strip()}"
    assert {one: run.measure(one) for one in measures} == pytest.approx(measures)
    assert not [m for m in run.table("measures")["measure"].tolist() if "lr" in m]


def test_rows_are_where_they_say(tmp_path: Path) -> None:
    keras = one_run(tmp_path, KINDS["keras"][1], "a.csv")
    assert rows(keras, "loss")[["epoch", "over"]].to_numpy().tolist() == [
        [1, "epoch"],
        [2, "epoch"],
    ]
    assert rows(keras, "top1")["over"].tolist() == ["run", "run"]
    yolo = one_run(tmp_path, KINDS["ultralytics"][1], "b.csv")
    epochs = yolo.table("epochs").to_frame()
    assert epochs[["epoch", "duration_ns"]].to_numpy().tolist() == [[1, 10.5 * S], [2, 10 * S]]
    wandb = one_run(tmp_path, KINDS["wandb"][1], "c.csv")
    assert rows(wandb, "loss")["step"].tolist() == [0, 10, 20]
    assert rows(wandb, "loss")["at_ns"].tolist() == [1.5 * S, 2.5 * S, 3.5 * S]
    detectron = one_run(tmp_path, KINDS["detectron2"][1], "d.json")
    assert rows(detectron, "loss")["step"].tolist() == [20, 40]
    mm = one_run(tmp_path, KINDS["mmengine"][1], "e.json")
    assert rows(mm, "top1")["epoch"].tolist() == [1]
    assert len(rows(mm, "step_period_ns")) == 1


def test_a_chart_of_several_runs_is_several_runs(tmp_path: Path) -> None:
    text = '"Step","a b - train/loss","a b - train/loss__MIN","c - train/loss","c - _step"\n'
    text += '"0","2.0","1.0","3.0","0"\n"10","1.5","1.0","","10"\n'
    runs = all_runs(tmp_path, text, "chart.csv")
    assert [(run.name, run.labels["run"]) for run in runs] == [("a b", "a b"), ("c", "c")]
    assert [rows(run, "loss")["value"].tolist() for run in runs] == [[2, 1.5], [3]]
    assert all(
        run.table("metrics").to_frame()["metric"].unique().tolist() == ["loss"] for run in runs
    )


def test_a_table_that_goes_back_is_of_several_runs(tmp_path: Path) -> None:
    line = '{{"iteration": {}, "lr": 1e-5, "total_loss": {}.5}}\n'
    text = "".join(line.format(20 * i + 19, i) for run in (5, 3) for i in range(run))
    runs = all_runs(tmp_path, text, "metrics.json")
    assert [run.name for run in runs] == ["metrics:1", "metrics:2"]
    assert [rows(run, "loss")["step"].tolist() for run in runs] == [[20, 40, 60, 80, 100],
                                                                    [20, 40, 60]]  # fmt: skip


def test_the_table_in_the_card_of_a_model(tmp_path: Path) -> None:
    text = """---
license: mit
---
# whisper-small

| Training Loss | Epoch | Step | Validation Loss | Wer     |
|:-------------:|:-----:|:----:|:---------------:|:-------:|
| No log        | 0.5   | 100  | 0.75            | 40.25   |
| 0.25          | 1.0   | 200  | 0.5             | 32.5    |
"""
    run = one_run(tmp_path, text, "README.md")
    assert rows(run, "loss")[["step", "epoch", "value"]].to_numpy().tolist() == [[200, 1, 0.25]]
    assert run.measure("best_val_loss") == 0.5 and rows(run, "Wer")["value"].tolist() == [
        40.25,
        32.5,
    ]


EXPORT = """"Name","State","Notes","User","Created","Runtime","batch_size","model","test_acc","loss"
"a","finished","-","me","2025-12-13T23:28:41.000Z","45","128","small","85.5","0.5"
"b","crashed","-","me","2025-12-13T23:25:20.000Z","50","256","large","","0.25"
"c","finished","-","me","2025-12-13T23:23:40.000Z","55","256","large","95.5","0.125"
"""


def test_an_export_of_runs_is_a_table_of_runs(tmp_path: Path) -> None:
    (path := tmp_path / "export.csv").write_text(EXPORT)
    runs = read_table(path)
    assert [run.name for run in runs] == ["a", "b", "c"]
    assert [run.labels for run in runs] == [{"model": "small"}, *[{"model": "large"}] * 2]
    assert [run.measure("test_acc") for run in runs] == [0.855, None, pytest.approx(0.955)]
    assert [run.measure("loss") for run in runs] == [0.5, 0.25, 0.125]
    assert [run.measure("runtime_ns") for run in runs] == [45 * S, 50 * S, 55 * S]
    assert [len(run.table("events")) for run in runs] == [0, 1, 0]


def test_rows_that_are_runs_are_no_steps(tmp_path: Path) -> None:
    text = "epochs,_runtime,_step,train_loss,name\n"
    text += "".join(f"9,{n},{40 - 7 * n % 11},0.5,run{n}\n" for n in range(20))
    (path := tmp_path / "summary.csv").write_text(text)
    with pytest.raises(TraceError):
        read_log(path)


def test_the_user_says_what_columns_are(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("n,thr,ms,quality\n1,10,5,50\n2,20,4,60\n3,20,4,70\n")
    with pytest.raises(TraceError):
        read_log(path)
    columns = {"n": "step", "thr": "samples_per_s_per_device", "ms": "step_period_ms",
               "quality": "top1_percent"}  # fmt: skip
    (run,) = read_log(path, columns=columns)
    assert run.measure("samples_per_s_per_device") == 20
    assert run.measure("step_period_ns") == 4e6
    assert run.measure("best_top1") == pytest.approx(0.7)
    given = [part for name, what in columns.items() for part in ("-c", f"{name}={what}")]
    done = CliRunner().invoke(app, ["runs", "import-log", str(path), "--dry-run", *given])
    assert done.exit_code == 0
    assert "samples per s per device  20.00 /s" in done.output


def test_a_table_by_steps_is_no_table_of_runs(tmp_path: Path) -> None:
    for name, (file, text, _) in KINDS.items():
        (path := tmp_path / file).write_text(text)
        with pytest.raises(TraceError):
            assert not read_table(path), name


@pytest.mark.parametrize("text", ["{", "[]", "{}", "[1, 2]", '{"a": 1}', '{"a": [1]}\n{"a": 2}',
                                  "step\n1\n", "step,epoch\n1,2\n", "a,b\n1,2\n",
                                  '{"log_history": 3}', '[{"a": 1}]', "[" * 5000])  # fmt: skip
def test_what_is_no_such_table_is_refused(text: str, tmp_path: Path) -> None:
    (path := tmp_path / "a.json").write_text(text)
    try:
        (run,) = read_log(path)
    except TraceError:
        return
    assert len(run.table("metrics")) == 0


def events(*told: tuple[int, dict[str, float]]) -> bytes:
    start = 1_700_000_000.0
    body = [record(scalars_event(start + step, step, values)) for step, values in told]
    return b"".join([record(version_event(start)), *body])


def test_event_files_of_tensorboard(tmp_path: Path) -> None:
    data = events((1, {"train/loss": 2.0, "val/accuracy": 0.5}), (2, {"train/loss": 1.0}))
    run = one_run(tmp_path, data, "events.out.tfevents.1.host")
    assert run.origin == "log:tensorboard"
    assert rows(run, "loss")[["step", "at_ns", "value"]].to_numpy().tolist() == [
        [1, 0, 2.0],
        [2, S, 1.0],
    ]
    assert run.measure("best_top1") == 0.5
    assert run.started_utc_ns is None or run.started_utc_ns > 0


def test_event_files_that_tensorboard_writes(tmp_path: Path) -> None:
    written = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    protos = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    summaries = pytest.importorskip("tensorboard.compat.proto.summary_pb2")
    writer = written.EventFileWriter(str(tmp_path))
    for step in range(3):
        value = summaries.Summary.Value(tag="loss", simple_value=2 - step / 2)
        summary = summaries.Summary(value=[value])
        writer.add_event(protos.Event(wall_time=1.7e9 + step, step=step, summary=summary))
    writer.close()
    (path,) = tmp_path.iterdir()
    (run,) = read_log(path)
    assert rows(run, "loss")["value"].tolist() == [2, 1.5, 1]
    assert rows(run, "loss")["at_ns"].tolist() == [0, S, 2 * S]


def test_event_files_that_are_cut_off_or_empty(tmp_path: Path) -> None:
    data = events((1, {"loss": 2.0}), (2, {"loss": 1.0}))
    for end in range(len(data)):
        (path := tmp_path / "events").write_bytes(data[:end])
        found = list(scalars_in(path))
        assert [one.value for one in found] in ([], [2.0], [2.0, 1.0])
    (path := tmp_path / "events").write_bytes(events())
    with pytest.raises(TraceError, match="contains no scalars"):
        read_log(path)
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        assert len(list(scalars_in(path))) <= 4


def test_scalars_that_are_tensors(tmp_path: Path) -> None:
    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    content = field(4, struct.pack("<f", 0.25))
    packed = field(5, struct.pack("<f", 0.75))
    other = field(4, b"text")
    values = b"".join(
        field(1, field(1, tag) + field(8, bytes([1 << 3, kind]) + tensor))
        for tag, kind, tensor in ((b"a", 1, content), (b"b", 1, packed), (b"c", 7, other))
    )
    data = record(version_event(1.0)) + record(bytes([2 << 3, 5]) + field(5, values))
    (path := tmp_path / "events").write_bytes(data)
    assert [(one.tag, one.step, one.value) for one in scalars_in(path)] == [
        ("a", 5, 0.25),
        ("b", 5, 0.75),
    ]


UNREAD = {
    "accelerate_tqdm.log": ("diffusers", {"step_period_ns": 2 * S, "last_loss": 0.113}),
    "detectron2_metrics.json": ("detectron2", {"step_period_ns": 0.2505 * S, "last_loss": 1.41}),
    "espnet.log": ("espnet", {"step_period_ns": 0.307 * S, "last_loss": 88.2}),
    "hf_trainer_state.json": ("hf-trainer", {"best_eval_g0_accuracy": 0.7082294264339152}),
    "keras_csvlogger.csv": ("keras", {"best_top1": 0.8856, "last_loss": 0.3501}),
    "keras_history.json": ("keras", {"best_top1": 0.8856, "last_loss": 0.3501}),
    "llmc.log": ("llm-c", {"tokens_per_s": 381507, "step_period_ns": 2.74963 * S,
                           "global_batch_count": 1024}),
    "maxtext_new.log": ("maxtext", {"tokens_per_s_per_device": 9423.869}),
    "mmengine_scalars.json": ("mmengine", {"best_top1": 0.712, "step_period_ns": 0.407 * S}),
    "mnist_example.log": ("mnist", {"best_top1": 0.9889, "last_loss": 0.084441}),
    "openclip.log": ("open-clip", {"samples_per_s": 2497.745, "global_batch_count": 16384}),
    "paddleclas.log": ("paddle", {"samples_per_s_per_rank": 153.43891}),
    "tfestimator.log": ("tf-estimator", {"last_loss": 1.33547, "steps_per_s": 1.55515}),
    "timm_summary.csv": ("timm", {"best_top1": 0.86}),
    "wandb_export.csv": ("wandb", {"last_loss": 1.55}),
    "yolo_results.csv": ("ultralytics", {"best_bbox/AP": 0.35234}),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREAD)
def test_logs_and_tables_that_were_not_read(name: str) -> None:
    source, measures = UNREAD[name]
    (run,) = read_log(shared(f"unread/{name}"))
    assert run.origin == f"log:{source}"
    assert {one: run.measure(one) for one in measures} == pytest.approx(measures, rel=1e-5)
    assert "contradicts" not in said(run)


def test_every_unread_file_is_told() -> None:
    assert {path.name for path in shared("unread").iterdir()} - {"README.md"} == set(UNREAD)


@pytest.mark.parametrize(
    ("heading", "cell"), [("step_time_s", 0.25), ("step_time_ms", 250), ("perf/step_time_s", 0.25)]
)
def test_a_column_of_step_times_is_the_step_period(
    tmp_path: Path, heading: str, cell: float
) -> None:
    lines = [f"step,loss,{heading}", *(f"{i},{2 - i / 10},{cell}" for i in range(5))]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    (run,) = read_log(tmp_path / "a.csv")
    assert run.measure("step_period_ns") == pytest.approx(0.25 * S)


def test_columns_with_spaces(tmp_path: Path) -> None:
    text = (
        "#  step      rmse_val    rmse_trn    rmse_e_trn         lr\n"
        "# If there is no available reference data, rmse_*_{val,trn} will print nan\n"
        "      0      1.50e+01    2.50e+01      1.00e+00    1.0e-03\n"
        "    100           nan    1.25e+01      0.50e+00    1.0e-03\n"
    )
    run = one_run(tmp_path, text, "lcurve.out")
    assert run.origin == "log:deepmd"
    assert rows(run, "rmse")[["step", "value"]].to_numpy().tolist() == [[0, 25], [100, 12.5]]
    assert rows(run, "val_rmse")["value"].tolist() == [15]
    assert rows(run, "lr").empty


def test_the_accuracy_of_fastai_is_that_of_the_validation(tmp_path: Path) -> None:
    text = (
        "epoch     train_loss  valid_loss  accuracy  time    \n"
        "0         0.512345    0.412345    0.750000  00:12     \n"
        "1         0.412345    0.312345    0.875000  00:12     \n"
    )
    run = one_run(tmp_path, text)
    assert run.measure("last_top1") == 0.875
    assert rows(run, "top1")["epoch"].tolist() == [1, 2]


def test_text_below_a_heading_with_a_step_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="unknown"):
        one_run(tmp_path, "step  words\n1  is\n2  not\n3  numbers\n")


def test_scalars_that_tensorboard_exports_as_json(tmp_path: Path) -> None:
    points = [[1.7e9 + 10 * n, 100 * n, 2.5 - n / 100] for n in range(1, 21)]
    run = one_run(tmp_path, json.dumps(points), "run-a-tag-train_loss.json")
    assert run.measure("last_loss") == pytest.approx(2.3)
    assert run.measure("overall_step_period_ns") == pytest.approx(0.1e9)


def test_environment_steps_have_no_step_time(tmp_path: Path) -> None:
    points = [[1.7e9 + 10 * n + 0.5, 25_000 * n, 2500] for n in range(1, 21)]
    run = one_run(tmp_path, json.dumps(points), "run-a-tag-charts_SPS.json")
    measures = run.table("measures").to_frame()
    assert measures[["measure", "value"]].to_numpy().tolist() == [["environment_steps_per_s", 2500]]


def test_the_summary_of_wandb_has_the_last_values(tmp_path: Path) -> None:
    values = {"_step": 999, "_runtime": 1234.5, "_timestamp": 1.7e9, "train/loss": 2.25}
    text = json.dumps(values | {"charts/SPS": 2310, "_wandb": {"runtime": 1234}})
    run = one_run(tmp_path, text, "wandb-summary.json")
    assert run.origin == "log:wandb"
    assert run.measure("last_loss") == 2.25
    assert run.measure("environment_steps_per_s") == 2310
    assert rows(run, "loss")["step"].tolist() == [999]


def test_a_table_in_a_truncated_gzip_file_is_called_truncated(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"step": n, "loss": n % 7 + n / 1e4}) + "\n" for n in range(2000))
    packed = gzip.compress(lines.encode())
    run = one_run(tmp_path, packed[: len(packed) // 2], "history.jsonl.gz")
    assert "damaged or truncated" in said(run)
    assert 100 < len(rows(run, "loss")) < 1999
    assert "damaged" not in said(one_run(tmp_path, packed, "whole.jsonl.gz"))
    with pytest.raises(TraceError, match="damaged or truncated"):
        one_run(tmp_path, packed[:20], "nothing.jsonl.gz")
