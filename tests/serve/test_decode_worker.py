"""The process that decodes; what it does is tested through `decoders`."""

import subprocess
import sys


def test_a_worker_does_not_import_torch() -> None:
    look = "import sys, resitta.serve.decode_worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=False, timeout=60).returncode == 0
