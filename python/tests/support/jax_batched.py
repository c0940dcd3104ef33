"""In a child with Keras on JAX: results in batches against Keras' own, see `batched`."""

import keras
import numpy as np
from batched import make

from gpukeras.accelerate.rows import CallRows, dataset_of
from gpukeras.engine.predict import predict_rows
from gpukeras.training import evaluate


def tell(name):
    """Returns whether a note was made, and the largest differences from Keras' own results."""
    model, x, y, weights = make(name)
    known = model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)
    outputs = model.predict(x, verbose=0)
    ours = make(name)[0]
    data = dataset_of(CallRows(x, y, weights), ours, {"shuffle": False})
    found = evaluate.evaluate_logs(ours, data)
    predicted = predict_rows(ours, data.sources[0], data.recipe)
    keras.tree.assert_same_structure(found.logs, known)
    return [bool(found.note), apart(found.logs, known), apart(predicted, outputs)]


def apart(found, known):
    pairs = zip(keras.tree.flatten(found), keras.tree.flatten(known), strict=True)
    return max(float(np.max(np.abs(np.asarray(one) - two))) for one, two in pairs)
