"""`python -m sdfeel` is `sdfeel`, for where the command is not on the path."""

from sdfeel.cli import main

if __name__ == "__main__":
    main()
