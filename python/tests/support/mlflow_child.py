"""Trains with a tracker of MLflow, reads the run back by MLflow, and prints what it found as JSON.

python mlflow_child.py URI FOLDER
"""

import json
import sys
from pathlib import Path

import mlflow
import numpy as np
from mlflow.tracking import MlflowClient
from small_fits import make_dataset, make_model

from gpukeras.export.archive import load_archive
from gpukeras.tracking.tracking import close_tracking, open_tracking
from gpukeras.training.fit import fit


def train(options, picture, callbacks=()):
    model, data = make_model(), make_dataset(validation=0.2)
    tracking = open_tracking({"kind": "mlflow", **options}, model, {"epochs": 3})
    called = [*callbacks, tracking.callback]
    report = fit(model, data, {"epochs": 3, "engine": "graph_loop"}, callbacks=called)
    ended = close_tracking(tracking, model, report.stopped, {"rows": report.rows}, files=[picture])
    return model, data, report, ended


def read_run(uri, report, model, data):
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("cars")
    (run,) = client.search_runs([experiment.experiment_id])
    mlflow.set_tracking_uri(uri)
    rows = data.batch(5)[0]
    loaded = mlflow.keras.load_model(f"runs:/{run.info.run_id}/model")
    file = mlflow.artifacts.download_artifacts(f"runs:/{run.info.run_id}/model/data/model.keras")
    same = {
        name: [m.value for m in client.get_metric_history(run.info.run_id, name)]
        for name in report.history
    }
    return {
        "run": run.info.run_id,
        "name": run.info.run_name,
        "status": run.info.status,
        "parameters": run.data.params,
        "metrics_are_those_of_the_history": same == report.history,
        "steps": [m.step for m in client.get_metric_history(run.info.run_id, "loss")],
        "artifacts": sorted(file.path for file in client.list_artifacts(run.info.run_id)),
        "same_predictions": bool(np.array_equal(loaded(rows), model(rows))),
        "history_in_file": json.loads(load_archive(file)["history"])["history"] == report.history,
    }


def main(uri, folder):
    picture = Path(folder) / "history.png"
    picture.write_bytes(b"not really a picture")
    options = {"uri": uri, "experiment": "cars", "run": "first"}
    model, data, report, ended = train(options, str(picture))
    found = {"ended": ended, **read_run(uri, report, model, data)}
    *_, report, ended = train({"uri": "http://127.0.0.1:9", "experiment": "cars"}, str(picture))
    found["unreachable"] = {"stopped": report.stopped, **ended}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
