BEGIN TRANSACTION;
CREATE TABLE contents (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    result TEXT NOT NULL,
    name TEXT NOT NULL,
    "table" TEXT NOT NULL,
    n_rows INTEGER NOT NULL,
    columns TEXT NOT NULL,
    PRIMARY KEY (run_id, result, name)
) WITHOUT ROWID;
INSERT INTO "contents" VALUES(1,'','events','events',1,'["event", "kind", "at_ns", "node", "text"]');
INSERT INTO "contents" VALUES(1,'','attempts','attempts',0,'["attempt", "rank", "node", "at_ns", "end_ns", "ended", "source"]');
INSERT INTO "contents" VALUES(1,'','measures','measures',3,'["measure", "value", "unit", "scope", "better", "low", "high", "source"]');
INSERT INTO "contents" VALUES(1,'','metrics','metrics',2,'["metric", "attempt", "rank", "step", "epoch", "value"]');
INSERT INTO "contents" VALUES(1,'','steps','steps',6,'["attempt", "rank", "step", "steps_count", "at_ns", "period_ns", "between_ns", "device_ns", "compute_ns", "exposed_communication_ns", "exposed_transfer_ns", "device_memory_ns", "idle_ns", "waited_ns", "samples_count", "is_warmup"]');
INSERT INTO "contents" VALUES(1,'kernels','classes','result_kernels__classes',0,'["class"]');
INSERT INTO "contents" VALUES(1,'kernels','kernels','result_kernels',3,'["name", "class", "kernel_count", "total_ns", "share_ratio", "remark", "is_new"]');
CREATE TABLE declarations (
    id INTEGER PRIMARY KEY,
    result TEXT NOT NULL,
    declaration TEXT NOT NULL UNIQUE
);
INSERT INTO "declarations" VALUES(1,'kernels','{"tables":[{"name":"kernels","about":"kernels by name","columns":[{"name":"name","unit":"text","meaning":"its name","combine":"key","weight":""},{"name":"class","unit":"text","meaning":"its class","combine":"same","weight":""},{"name":"kernel_count","unit":"count","meaning":"how many","combine":"sum","weight":""},{"name":"total_ns","unit":"ns","meaning":"how long together","combine":"sum","weight":""},{"name":"share_ratio","unit":"ratio","meaning":"of all","combine":"derived","weight":""},{"name":"remark","unit":"text","meaning":"what must be known of it","combine":"same","weight":""},{"name":"is_new","unit":"flag","meaning":"whether it is new","combine":"same","weight":""}]},{"name":"classes","about":"by class","columns":[{"name":"class","unit":"text","meaning":"the class","combine":"key","weight":""}]}],"scalars":[{"name":"median_ns","unit":"ns","meaning":"the median","combine":"derived","weight":""},{"name":"best","unit":"text","meaning":"the most frequent one","combine":"derived","weight":""}]}');
CREATE TABLE environment (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run_id, name)
) WITHOUT ROWID;
INSERT INTO "environment" VALUES(1,'cpu','EPYC 7742');
INSERT INTO "environment" VALUES(1,'cuda','12.4');
INSERT INTO "environment" VALUES(1,'driver','550.54.15');
INSERT INTO "environment" VALUES(1,'gpu','NVIDIA H100 80GB HBM3');
INSERT INTO "environment" VALUES(1,'os','Debian GNU/Linux 12');
INSERT INTO "environment" VALUES(1,'torch','2.5.1');
CREATE TABLE "epochs" (run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, "row" INTEGER NOT NULL, "attempt" NUMERIC, "epoch" NUMERIC, "at_ns" INTEGER, "duration_ns" INTEGER, "steps_count" INTEGER, "samples_count" INTEGER, "ranks_count" INTEGER, PRIMARY KEY (run_id, "row")) WITHOUT ROWID;
CREATE TABLE "events" (run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, "row" INTEGER NOT NULL, "event" NUMERIC, "kind" TEXT, "at_ns" INTEGER, "duration_ns" INTEGER, "attempt" NUMERIC, "rank" NUMERIC, "node" TEXT, "epoch" NUMERIC, "value" NUMERIC, "text" TEXT, PRIMARY KEY (run_id, "row")) WITHOUT ROWID;
INSERT INTO "events" VALUES(1,0,0,'start',0,NULL,NULL,NULL,'a',NULL,NULL,'began = “now”');
CREATE TABLE labels (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    label TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run_id, label)
) WITHOUT ROWID;
INSERT INTO "labels" VALUES(1,'cluster','a');
INSERT INTO "labels" VALUES(1,'network','calico');
CREATE TABLE "attempts" (run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, "row" INTEGER NOT NULL, "attempt" NUMERIC, "rank" NUMERIC, "node" TEXT, "at_ns" INTEGER, "end_ns" INTEGER, "ended" TEXT, "source" TEXT, PRIMARY KEY (run_id, "row")) WITHOUT ROWID;
CREATE TABLE "makeup" (run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, "row" INTEGER NOT NULL, "part" TEXT, "kind" TEXT, "name" TEXT, "class" TEXT, "place_ratio" REAL, "ns" INTEGER, "count" INTEGER, "n_bytes" INTEGER, PRIMARY KEY (run_id, "row")) WITHOUT ROWID;
CREATE TABLE "measures" (run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, "row" INTEGER NOT NULL, "measure" TEXT, "value" NUMERIC, "unit" TEXT, "scope" TEXT, "better" TEXT, "low" NUMERIC, "high" NUMERIC, "source" TEXT, PRIMARY KEY (run_id, "row")) WITHOUT ROWID;
INSERT INTO "measures" VALUES(1,0,'samples_per_s',5.8181818181818180163e+03,'1/s','run','',NULL,NULL,'measured');
INSERT INTO "measures" VALUES(1,1,'step_period_ns',11000000,'ns','run','',NULL,NULL,'measured');
INSERT INTO "measures" VALUES(1,2,'world_size',2,'count','run','',NULL,NULL,'measured');
CREATE TABLE "metrics" (run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, "row" INTEGER NOT NULL, "metric" TEXT, "attempt" NUMERIC, "rank" NUMERIC, "step" NUMERIC, "epoch" NUMERIC, "at_ns" INTEGER, "samples_count" INTEGER, "value" NUMERIC, "scope" TEXT, "over" TEXT, PRIMARY KEY (run_id, "row")) WITHOUT ROWID;
INSERT INTO "metrics" VALUES(1,0,'loss',0,NULL,1,0.5,NULL,NULL,2.5,NULL,NULL);
INSERT INTO "metrics" VALUES(1,1,'top1',0,1,NULL,1,NULL,NULL,0.75,NULL,NULL);
CREATE TABLE notes (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    result TEXT NOT NULL,
    "row" INTEGER NOT NULL,
    template TEXT NOT NULL,
    "values" TEXT NOT NULL,
    PRIMARY KEY (run_id, result, "row")
) WITHOUT ROWID;
INSERT INTO "notes" VALUES(1,'',0,'prints {said:1/s}, its times say {true:1/s}','{"said":95.0,"true":94.2}');
INSERT INTO "notes" VALUES(1,'kernels',0,'{lost:ns} lost','{"lost":1152921504606846977}');
CREATE TABLE "result_kernels" (run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, "row" INTEGER NOT NULL, "name" TEXT, "class" TEXT, "kernel_count" INTEGER, "total_ns" INTEGER, "share_ratio" REAL, "remark" TEXT, "is_new" INTEGER, PRIMARY KEY (run_id, "row")) WITHOUT ROWID;
INSERT INTO "result_kernels" VALUES(1,0,'gemm','matmul',2,1152921504606846976,0.75,'json:{"$note":["{n:count} cop(y|ies)",{"n":2}]}',1);
INSERT INTO "result_kernels" VALUES(1,1,'json:"json: no JSON"',NULL,1,7,NULL,NULL,0);
INSERT INTO "result_kernels" VALUES(1,2,'“relu”','',3,5,1.0,'json:{"$tuple":["a","b"]}',1);
CREATE TABLE "result_kernels__classes" (run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, "row" INTEGER NOT NULL, "class" TEXT, PRIMARY KEY (run_id, "row")) WITHOUT ROWID;
CREATE TABLE results (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    result TEXT NOT NULL,
    "row" INTEGER NOT NULL,
    declaration_id INTEGER NOT NULL REFERENCES declarations(id),
    PRIMARY KEY (run_id, result)
) WITHOUT ROWID;
INSERT INTO "results" VALUES(1,'kernels',0,1);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    added TEXT NOT NULL,
    traceprof TEXT NOT NULL,
    origin TEXT NOT NULL,
    command TEXT NOT NULL,
    workload TEXT NOT NULL,
    started_utc_ns INTEGER,
    "window" TEXT NOT NULL,
    window_ns INTEGER,
    steps_count INTEGER,
    devices_count INTEGER
);
INSERT INTO "runs" VALUES(1,'full','2026-11-22 06:24:09','0.1.0','nsys','python train.py --lr 0.1','training',1790000000123456789,'steady',33000000,3,2);
CREATE TABLE scalars (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    result TEXT NOT NULL,
    scalar TEXT NOT NULL,
    value,
    PRIMARY KEY (run_id, result, scalar)
) WITHOUT ROWID;
INSERT INTO "scalars" VALUES(1,'kernels','best',NULL);
INSERT INTO "scalars" VALUES(1,'kernels','median_ns',12);
CREATE TABLE sources (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    "row" INTEGER NOT NULL,
    path TEXT NOT NULL,
    format TEXT NOT NULL,
    n_bytes INTEGER,
    ranks TEXT NOT NULL,
    PRIMARY KEY (run_id, "row")
) WITHOUT ROWID;
INSERT INTO "sources" VALUES(1,0,'/data/run.sqlite','nsys',123456,'[0, 1]');
CREATE TABLE "steps" (run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, "row" INTEGER NOT NULL, "attempt" NUMERIC, "rank" NUMERIC, "step" NUMERIC, "steps_count" INTEGER, "at_ns" INTEGER, "period_ns" INTEGER, "between_ns" INTEGER, "device_ns" INTEGER, "compute_ns" INTEGER, "exposed_communication_ns" INTEGER, "exposed_transfer_ns" INTEGER, "device_memory_ns" INTEGER, "idle_ns" INTEGER, "waited_ns" INTEGER, "samples_count" INTEGER, "is_warmup" INTEGER, PRIMARY KEY (run_id, "row")) WITHOUT ROWID;
INSERT INTO "steps" VALUES(1,0,0,0,0,1,0,10000000,0,10000000,8000000,0,0,0,2000000,0,32,0);
INSERT INTO "steps" VALUES(1,1,0,0,1,1,10000000,12000000,0,12000000,9600000,0,0,0,2400000,0,32,0);
INSERT INTO "steps" VALUES(1,2,0,0,2,1,22000000,11000000,0,11000000,8800000,0,0,0,2200000,0,32,0);
INSERT INTO "steps" VALUES(1,3,0,1,0,1,0,10000000,0,10000000,8000000,0,0,0,2000000,0,32,0);
INSERT INTO "steps" VALUES(1,4,0,1,1,1,10000000,12000000,0,12000000,9600000,0,0,0,2400000,0,32,0);
INSERT INTO "steps" VALUES(1,5,0,1,2,1,22000000,11000000,0,11000000,8800000,0,0,0,2200000,0,32,0);
CREATE INDEX labels_by_value ON labels(label, value);
CREATE VIEW "runs_overview" AS 
        SELECT runs.id, runs.name, runs.added,
            datetime(runs.started_utc_ns / 1000000000, 'unixepoch') AS started,
            runs.origin,
            (SELECT group_concat(label || '=' || value, ' ')
                FROM labels WHERE run_id = runs.id) AS labels,
            (SELECT value FROM measures
                WHERE run_id = runs.id AND measure = 'world_size') AS world_size,
            runs.devices_count,
            (SELECT value FROM environment WHERE run_id = runs.id AND name = 'gpu') AS gpu,
            (SELECT value FROM measures
                WHERE run_id = runs.id AND measure = 'samples_per_s') AS samples_per_s,
            (SELECT value / 1e6 FROM measures
                WHERE run_id = runs.id AND measure = 'step_period_ns') AS step_period_ms,
            runs.steps_count,
            runs.command
        FROM runs;
CREATE VIEW "runs_measures" AS 
        SELECT runs.name, measures.measure, measures.value, measures.unit, measures.low,
            measures.high, measures.scope, measures.source
        FROM measures JOIN runs ON runs.id = measures.run_id;
CREATE VIEW "runs_environment" AS 
        SELECT runs.name AS run, environment.name, environment.value
        FROM environment JOIN runs ON runs.id = environment.run_id;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',1);
COMMIT;
