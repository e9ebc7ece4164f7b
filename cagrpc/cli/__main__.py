"""`python -m cagrpc.cli`, the same as the installed `cagrpc`."""

import sys

from cagrpc.cli.main import main

sys.exit(main())
