"""`python -m penstock_operator …`."""

import sys

from penstock_operator.main import main

if __name__ == "__main__":
    sys.exit(main())
