"""``python -m sparse24``."""

import sys

from sparse24._cli import main

sys.exit(main())
