"""`python -m dcrl` is the command `dcrl`."""

from dcrl.cli import main

if __name__ == "__main__":
    main()
