import json

from children import run_python

# The standard library alone: NumPy may be what cannot be imported.
CHECK = """
import json, sys
sys.modules["numpy"] = None
from gpukeras.diagnostics.no_core import check_core
print(json.dumps(check_core("ImportError: /env/a.so: file too short", "/env/bin/python")))
"""


def test_an_import_that_fails_is_diagnosed_without_numpy():
    child = run_python("-c", CHECK)
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)
    assert (found["verdict"], found["cause_id"]) == ("NOT USED", "C26")
    assert "/env/a.so: file too short" in found["evidence"][0]
    assert found["facts"]["python"]["executable"] == "/env/bin/python"
    assert any(one["id"] == "C26" for one in found["findings"])
