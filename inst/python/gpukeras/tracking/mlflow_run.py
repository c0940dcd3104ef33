"""Records a training as a run of MLflow, through MLflow's own client.

The model is an artifact "model" that `mlflow.keras.load_model("runs:/ID/model")` loads. Its file
`data/model.keras` is gpukeras' own, which Keras opens too, so `gpu_load()` reads it with recipe and
history. The format of an artifact: https://mlflow.org/docs/latest/ml/model/ (MLmodel, flavors).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.messages import hide_credentials
from gpukeras.tracking.options import Parameter, check_mlflow

LONGEST = 500  # characters of a parameter: the limit of MLflow's servers before 1.28
STATUSES = {"interrupted": "KILLED", "failed": "FAILED"}  # any other is "FINISHED"
# Defaults where the user has set nothing: MLflow's own would try for minutes whether a server that
# is gone answers, and tell its makers which functions are used.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_. /-]")


class MlflowTracker:
    """Records a training as a run.

    Args:
        uri: The tracking URI, or None for MLflow's own choice.
        experiment: The experiment's name, or None for MLflow's own choice.
        run: The run's name, or None for one that MLflow makes.

    Raises:
        RuntimeMissingError: if MLflow is not installed.
    """

    def __init__(
        self, uri: str | None = None, experiment: str | None = None, run: str | None = None
    ) -> None:
        """Keeps the arguments; asks no server yet."""
        check_mlflow()
        self._uri, self._experiment, self._name = uri, experiment, run
        self._client: Any = None
        self._run = ""
        self.where = f"MLflow at {hide_credentials(uri)}" if uri else "MLflow"

    def start(self, parameters: Mapping[str, Parameter]) -> None:
        """Creates the run and logs the parameters."""
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        created = self._client.create_run(self._find_experiment(), run_name=self._name)
        self._run = created.info.run_id
        self.where += f", run {self._run}"
        self._log_parameters(parameters)

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics, with the epoch as their step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        logged = [Metric(_NOT_ALLOWED.sub("_", k), v, now, number) for k, v in metrics.items()]
        self._client.log_batch(self._run, metrics=logged)

    def end(self, status: str, results: Mapping[str, Parameter], files: Sequence[Path]) -> None:
        """Logs the results and the files, and ends the run."""
        self._log_parameters(results)
        for file in files:
            if file.suffix == ".keras":
                self._log_model(file)
            else:
                self._client.log_artifact(self._run, str(file))
        self._client.set_terminated(self._run, STATUSES.get(status, "FINISHED"))

    def _find_experiment(self) -> str:
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if not name:
            return os.environ.get("MLFLOW_EXPERIMENT_ID", "0")
        experiment = self._client.get_experiment_by_name(name)
        return str(experiment.experiment_id if experiment else self._client.create_experiment(name))

    def _log_parameters(self, values: Mapping[str, Parameter]) -> None:
        from mlflow.entities import Param

        known = {name: value for name, value in values.items() if value is not None}
        logged = [Param(name, str(value)[:LONGEST]) for name, value in known.items()]
        self._client.log_batch(self._run, params=logged)

    def _log_model(self, file: Path) -> None:
        from mlflow.models import Model

        keras = runtime.keras()
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root) / "model"
            (folder / "data").mkdir(parents=True)
            shutil.copyfile(file, folder / "data" / "model.keras")
            (folder / "data" / "keras_module.txt").write_text("keras", encoding="utf-8")
            about = Model(run_id=self._run)
            about.add_flavor(
                "keras",
                data="data",
                keras_version=keras.__version__,
                keras_backend=keras.backend.backend(),
                save_exported_model=False,
            )
            about.add_flavor("python_function", loader_module="mlflow.keras")
            about.save(str(folder / "MLmodel"))
            self._client.log_artifacts(self._run, str(folder), "model")
