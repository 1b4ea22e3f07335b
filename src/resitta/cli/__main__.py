"""`python -m resitta.cli` is `resitta`."""

import sys

from resitta.cli import main

sys.exit(main())
