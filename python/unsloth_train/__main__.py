"""`unsloth-train …` and `python -m unsloth_train …`: this process becomes the program."""

import os
import sys

from ._program import NotInstalledError, program

EXIT_RUNTIME = 4  # of the program's error library.cannot-load


def main() -> int:
    path = "the program"
    try:
        path, environment = program()
        os.execve(path, [path, *sys.argv[1:]], environment)
    except NotInstalledError as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"unsloth-train: error[process.cannot-start]: cannot start {path}: {error.strerror}", file=sys.stderr)
    return EXIT_RUNTIME


if __name__ == "__main__":
    sys.exit(main())
