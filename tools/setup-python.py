"""Print the path of this interpreter if gpukeras can use it, else fail.

    python setup-python.py NEWEST      # the newest minor version allowed, as 12 for Python 3.12

TensorFlow 2.21 needs Python 3.10, and NumPy 1.26 stops at Python 3.12.  The
virtual environment needs `venv` and `ensurepip`, which Debian leaves out of
python3, and R needs Python as a shared library, which many builds leave out.
"""

import ensurepip  # noqa: F401
import os
import sys
import sysconfig
import venv  # noqa: F401

if not (3, 10) <= sys.version_info[:2] <= (3, int(sys.argv[1])):
    sys.exit("unsupported version")

library, folder, platform = map(sysconfig.get_config_var, ("INSTSONAME", "LIBDIR", "MULTIARCH"))
folders = [folder, os.path.join(folder, platform or "")]
is_framework = bool(sysconfig.get_config_var("PYTHONFRAMEWORK"))  # macOS
if not is_framework and not any(os.path.exists(os.path.join(f, library)) for f in folders):
    sys.exit("no shared library")

print(sys.executable)
