"""The house: imports point one way, one door to TensorFlow, pure verbs are pure."""

import ast
import functools
from pathlib import Path

import pytest

import gpukeras

CORE = Path(gpukeras.__file__).parent
# From the bottom up; a module may import only from the floors below its own.
FLOORS = [
    [
        "errors",
        "facts",
        "metrics",
        "wording",
        "children",
        "loader_log",
        "probes.codes",
        "own_files",
        "keras_private",
        "distribution.seals",
    ],
    ["distribution.frames", "distribution.confinement", "installed", "naming"],
    ["distribution.faults", "distribution.links"],
    ["distribution.calls", "distribution.mailboxes", "distribution.doors"],
    ["distribution.watching"],
    ["distribution.hub", "distribution.member"],
    ["board_program", "stages", "archives", "archived_code", "archive_masks", "forks"],
    ["archived_needs"],
    ["storage.checksums", "storage.folders", "streams.pulling", "checkpoints.canonical"],
    ["monitoring.measures", "monitoring.host"],
    ["monitoring.nvml", "monitoring.summary"],
    ["monitoring.sampler"],
    ["checkpoints.files", "checkpoints.locks", "checkpoints.identity"],
    ["checkpoints.store"],
    ["profiling.works", "profiling.entries", "profiling.scopes"],
    ["specs", "machine", "probes.driver", "known_bugs", "storage.examples"],
    ["distribution.addresses", "distribution.worker_program"],
    ["distribution.slurm", "distribution.sockets", "distribution.credentials"],
    ["distribution.joining"],
    ["distribution.channel"],
    ["distribution.cluster"],
    ["distribution.launch_plans", "distribution.workers"],
    ["distribution.launches"],
    ["readers.arrow", "readers.faults", "readers.records", "readers.ahead", "readers.zones"],
    ["readers.headers", "readers.paths", "readers.types", "readers.feather", "readers.parquet"],
    ["readers.arrow_columns", "readers.guessing", "readers.blocks", "readers.reader"],
    ["readers.csv_faults"],
    ["readers.parsing"],
    ["readers.delimited", "readers.columnar"],
    ["readers.table"],
    ["inventory", "nvidia", "causes", "storage.shards", "streams.generators"],
    ["xla_cache"],
    ["preload", "findings", "storage.manifest"],
    ["arrays", "runtime", "choosing", "plans", "judgement", "moments", "curves", "rooms", "shares"],
    ["distribution.insides", "distribution.wanted", "exhaustion", "losses"],
    ["awaiting", "identifiers", "profiling.hlo"],
    ["distribution.ring_costs", "profiling.host_lines"],
    ["distribution.scaling"],
    ["images.files", "images.geometry"],
    ["labels", "rows", "precision", "environment", "traces", "reporting", "times", "hashing"],
    ["monitoring.monitor", "distribution.launching"],
    ["schedules", "board_server", "profiling.gpu_lines"],
    ["streams.rebatching", "records.files", "images.rows"],
    ["missing", "profiling.xspace", "profiling.attribution"],
    ["text", "profiling.layers", "profiling.timelines"],
    ["columns", "profiling.report"],
    ["recipes", "settings", "tables.summaries", "outputs", "profiling.verdict"],
    [
        "features",
        "encodings",
        "tables.tiles",
        "tables.refusals",
        "records.fields",
        "groups",
        "profiling.advice",
    ],
    ["devices", "npy", "sparse", "portable", "images.augment", "mapping", "packing"],
    ["scratch", "streams.tfdata"],
    ["images.features", "tables.spool", "streams.packed", "strings"],
    ["tables.scanning", "tables.rules"],
    ["tables.features"],
    ["records.tables"],
    ["records.features"],
    ["sources"],
    ["pipeline", "streams.chunks", "probes.listing"],
    ["streams.draining"],
    ["streams.dataset"],
    ["streams.as_is"],
    ["streams.building"],
    ["blocks", "unpacking"],
    ["finishing"],
    ["feeding", "storage.saving", "storage.opening"],
    ["costs", "compiling", "targets", "variables"],
    ["engine", "assembly", "matching"],
    ["models", "snapshots", "optimizers", "predicting", "batch_size_memo"],
    ["profiling.flops"],
    ["profiling.op_flops"],
    ["profiling.model_calls"],
    ["profiling.activations"],
    ["profiling.memory_needs"],
    ["profiling.savings"],
    ["profiling.model_costs"],
    ["running", "steps", "fit_report"],
    ["reuse"],
    ["health", "profiling.measuring", "compression.masks", "compression.channels"],
    ["compression.growing", "compression.narrowing", "compression.naming"],
    ["checkpoints.state", "checkpoints.describing", "checkpoints.options", "profiling.traced"],
    ["checkpoints.checkpointer", "progress"],
    ["distribution.session", "distribution.agreement", "distribution.steps", "summary"],
    ["distribution.engines", "distribution.losing"],
    ["distribution.teams"],
    ["distribution.predictions"],
    ["inference", "evidence", "carried", "stopping", "tuning.knees", "tuning.rate_curves"],
    ["tuning.keeping", "tensorboards"],
    ["tuning.batch_sizes"],
    ["tuning.learning_rates"],
    ["histories", "keras_files"],
    ["model_archives"],
    ["batches", "untouched", "model_files", "callbacks", "saver", "aids", "listening"],
    ["usage", "profiling.profile", "compression.latency", "compression.copies"],
    ["compression.figures"],
    ["compression.report"],
    ["compression.students", "compression.teaching", "compression.structured"],
    ["compression.prune_options"],
    ["job", "probes.compute"],
    ["training"],
    ["compression.quantization", "compression.distillation", "compression.pruning"],
    ["compression.separable"],
    ["probing", "probes.exported", "export_formats", "export_samples"],
    ["exporting"],
    ["reading"],
    ["diagnosis"],
    ["border"],
    ["contract", "__main__"],
]
FLOOR = {module: floor for floor, modules in enumerate(FLOORS) for module in modules}
PURE_VERBS = ("parse_", "check_", "choose_", "plan_", "explain_", "judge", "split_", "to_plain")
TENSORFLOW = {"tensorflow", "keras"}
FILES = sorted(path for path in CORE.rglob("*.py") if path.stem != "__init__")


def name_module(path):
    """A file's name in FLOORS: the causes are one module, the probes are many programs."""
    parts = path.relative_to(CORE).with_suffix("").parts
    return parts[0] if parts[0] == "causes" else ".".join(parts)


def imports_of(tree, path):
    """What a file imports, its own package's modules as in FLOORS with a dot in front."""
    inside = path.relative_to(CORE).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module
        elif isinstance(node, ast.ImportFrom):
            above = [*inside[: len(inside) + 1 - node.level], *(node.module or "").split(".")]
            whole = ".".join(part for part in above if part)
            for alias in node.names:
                full = ".".join(part for part in (whole, alias.name) if part)
                yield "." + next(
                    (name for name in (full, whole) if name in FLOOR), full.split(".")[0]
                )


def functions_of(tree):
    return [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]


@pytest.fixture(params=FILES, ids=lambda path: ".".join(path.relative_to(CORE).parts))
def path(request):
    return request.param


@functools.cache
def parse(path):
    return ast.parse(path.read_text())


@pytest.fixture
def tree(path):
    return parse(path)


def test_every_module_has_a_floor():
    assert {name_module(path) for path in FILES} == set(FLOOR)


def test_imports_point_down(path, tree):
    module = name_module(path)
    own = {name[1:] for name in imports_of(tree, path) if name.startswith(".")} - {module}
    assert own <= set(FLOOR)
    assert not [name for name in own if FLOOR[name] >= FLOOR[module]]


def test_only_runtime_imports_tensorflow(path, tree):
    if path.stem == "runtime":
        pytest.skip("runtime is the door")
    assert not {name.split(".")[0] for name in imports_of(tree, path)} & TENSORFLOW


def test_pure_verbs_do_not_touch_tensorflow(path, tree):
    # Models are checked by asking Keras about them, so models.py is not bound by its verbs.
    if path.stem in ("models", "runtime"):
        pytest.skip("asks Keras about a model")
    for function in functions_of(tree):
        if function.name.startswith(PURE_VERBS):
            names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
            assert "runtime" not in names, function.name


def test_public_names_are_sorted_and_complete():
    public = [name for name in vars(gpukeras) if not name.startswith("_") and name[0].isupper()]
    assert sorted(public) == gpukeras.__all__
