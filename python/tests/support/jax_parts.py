"""Parts of a file on JAX, one after another: `python jax_parts.py FILE`, see `jax_runs.py`.

A line of JSON asks for each, with the variables of who asks; another tells what it found, or how it
failed, and the processor's seconds that it took.
"""

import importlib
import json
import os
import sys
import traceback

import precisions
import pretended_gpu


def answer(parts, name):
    before = sum(os.times()[:4])
    try:
        told = {"part": name, "found": parts.tell(name)}
    except Exception:
        told = {"part": name, "failed": traceback.format_exc()}
    return {**told, "seconds": sum(os.times()[:4]) - before}


if __name__ == "__main__":
    pretended_gpu.pretend_where_asked()
    precisions.set_precision(os.environ.get(precisions.NAME, "float32"))
    file = importlib.import_module(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        os.environ.update({**request["environment"], "KERAS_BACKEND": "jax"})
        print("\n" + json.dumps(answer(file, request["part"])), flush=True)
