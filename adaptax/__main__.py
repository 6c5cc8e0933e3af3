"""`python -m adaptax`: the same as the command `adaptax`."""

from adaptax.experiment.cli import main

if __name__ == "__main__":
    main()
