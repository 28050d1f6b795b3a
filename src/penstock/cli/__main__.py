"""`python -m penstock.cli …` is `penstock …`."""

from penstock.cli.main import main

main()
