"""``python -m longrein``, as ``accelerate launch -m longrein`` calls it."""

import sys

from longrein.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
