"""A search that is killed: `python kill_search.py FOLDER WAY`: "sequential", "stacks" or "workers".

Prints "begin", then "3 9" when trial 3 has a recorded outcome of 9 epochs. Asks for determinism, as
gpu_setup(seed = , deterministic = TRUE) does, so that searches can be compared to the last bit.
"""

import json
import sys

from small_fits import make_dataset
from trialled import trace_of, tune

from gpukeras import PreemptedError
from gpukeras.backend import devices
from gpukeras.many import plan


def main(folder, way):
    told = []

    def tell(event):
        if event["kind"] == "trial":
            told.append(event)
            print(event["trial"], event["epochs"], flush=True)

    devices.setup(seed=7, deterministic=True)
    data = make_dataset(60)
    print("begin", flush=True)
    engine, options = "keras", {"folder": folder, **({"workers": 2} if way == "workers" else {})}
    if way == "stacks":
        engine, plan.COMPILE_S = "compiled", 0.0  # also where compiling takes longer than training
    try:
        tuning = tune(data, options, on_event=tell, fit={"engine": engine})
    except PreemptedError as error:
        sys.exit(error.details["status"])
    words = {
        "sequential": "one model after another",
        "stacks": "in stacks",
        "workers": "in 2 worker",
    }
    assert words[way] in tuning.together or not told, tuning.together
    print(json.dumps(trace_of(tuning)))


if __name__ == "__main__":
    main(*sys.argv[1:])
