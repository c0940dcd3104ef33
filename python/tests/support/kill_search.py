"""A search that is killed: `python kill_search.py FOLDER`.

Prints "begin", then "3 9" when trial 3 has a recorded outcome of 9 epochs. Asks for determinism, as
gpu_setup(seed = , deterministic = TRUE) does, so that searches can be compared to the last bit.
"""

import json
import sys

from small_fits import make_dataset
from trialled import trace_of, tune

from gpukeras.backend import devices


def main(folder):
    def tell(event):
        if event["kind"] == "trial":
            print(event["trial"], event["epochs"], flush=True)

    devices.setup(seed=7, deterministic=True)
    data = make_dataset(60)
    print("begin", flush=True)
    tuning = tune(data, {"folder": folder}, on_event=tell)
    print(json.dumps(trace_of(tuning)))


if __name__ == "__main__":
    main(sys.argv[1])
