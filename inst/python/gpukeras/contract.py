"""Prints the contract with R as JSON: `python -m gpukeras.contract > contract.json`."""

import json

from .border import contract

if __name__ == "__main__":
    print(json.dumps(contract(), indent=2))
