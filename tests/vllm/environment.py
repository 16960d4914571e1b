"""Make a virtual environment in which the real vLLM serves requests without a GPU.

    python tests/vllm/environment.py VENV_DIR

Most of vLLM, and of what it asks for, is CUDA kernels. Fetching and decoding media is Python, so its
`.py` files are enough, over a PyTorch for CPUs and those requirements which the API server imports:
1.6 GB, and a minute or two.

VENV_DIR is made, with Python 3.11, where it isn't there. A second call finds it done and returns at
once; a change of the lists below, or an interrupted call, makes the next one do it again.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

VLLM = "vllm==0.33.0"
TORCH = "torch==2.13.0"  # exactly this one has a build without CUDA; vLLM's metadata asks for a newer one

MEDIA = [
    "packaging", "numpy", "pillow>=13", "pydantic>=2.12", "regex", "psutil", "cbor2", "pyzmq>=25", "urllib3",
    "transformers>=5.16.1,<5.21", "aiohttp>=3.14.4", "requests>=2.33", "oss-harmony>=0.0.11", "openai>=2.25",
    "pybase64", "cachetools", "soundfile", "opencv-python-headless>=4.13",
]  # fmt: skip
SERVER = [
    "msgspec", "cloudpickle", "uvloop", "py-cpuinfo", "fastapi[standard]>=0.133,<0.137", "llguidance>=1.7,<1.8",
    "orjson", "partial-json-parser", "einops", "mistral_common[image]>=1.11.6",
    "prometheus-fastapi-instrumentator>=8", "model-hosting-container-standards>=0.1.14,<1", "blake3",
    "apache-tvm-ffi==0.1.11",
]  # fmt: skip
ALONE = ["xgrammar==0.2.8"]  # its own requirements bring another GB, none of it imported here

CONSOLE_SCRIPT = """\
#!{python}
import sys

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
"""


def build(venv_python: Path, cache: Path) -> None:
    """Install the environment into the one that `venv_python` belongs to.

    `cache` is a folder for vLLM's wheel (340 MB), which is downloaded once and kept there.
    """
    site_packages, scripts = _folders(venv_python)
    stamp = site_packages.parent / "vllm-environment"
    if stamp.exists() and stamp.read_text() == _recipe():
        return
    stamp.unlink(missing_ok=True)

    def pip(*arguments: str) -> None:
        subprocess.run([venv_python, "-m", "pip", *arguments, "--disable-pip-version-check"], check=True)

    pip("install", TORCH)
    pip("install", TORCH, *MEDIA, *SERVER)  # named again, to hold it
    pip("install", "--no-deps", *ALONE)
    cache.mkdir(parents=True, exist_ok=True)
    pip("download", "--no-deps", "--only-binary=:all:", "--dest", str(cache), VLLM)
    (wheel,) = cache.glob(f"{VLLM.replace('==', '-')}-*.whl")
    _unpack(wheel, site_packages)
    _write_console_script(scripts / "vllm", venv_python)

    stamp.write_text(_recipe())


def _recipe() -> str:
    """What decides the environment's content: the lists above and how they are used, this file that is."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _folders(venv_python: Path) -> tuple[Path, Path]:
    program = "import json, sysconfig as s; print(json.dumps([s.get_path('purelib'), s.get_path('scripts')]))"
    answer = subprocess.run([venv_python, "-I", "-c", program], check=True, capture_output=True, text=True)
    site_packages, scripts = json.loads(answer.stdout)
    return Path(site_packages), Path(scripts)


def _unpack(wheel: Path, site_packages: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py") or name.partition("/")[0].endswith(".dist-info"):
                archive.extract(name, site_packages)


def _write_console_script(path: Path, venv_python: Path) -> None:
    path.write_text(CONSOLE_SCRIPT.format(python=venv_python.absolute()))
    path.chmod(0o755)


def make_venv(folder: Path) -> Path:
    """The Python of the virtual environment in `folder`, which is made where there is none."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([_python_3_11(), "-m", "venv", folder], check=True)
    return python


def _python_3_11() -> str:
    if sys.version_info[:2] == (3, 11):
        return sys.executable
    # pyenv leaves a shim on the PATH even where 3.11 is installed but not selected: it fails, try the next.
    candidates = [shutil.which("python3.11")]
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], check=True, capture_output=True, text=True).stdout.strip()
        candidates += map(str, Path(root, "versions").glob("3.11.*/bin/python3.11"))
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", "import ensurepip"], check=False, capture_output=True).returncode == 0:
            return candidate
    raise SystemExit("Python 3.11 is needed, and none was found")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("venv", type=Path, metavar="VENV_DIR")
    parser.add_argument("--cache", type=Path, help="folder that keeps vLLM's wheel (default: VENV_DIR/wheels)")
    arguments = parser.parse_args()
    start = time.monotonic()
    build(make_venv(arguments.venv), arguments.cache or arguments.venv / "wheels")
    print(f"{arguments.venv}: vLLM is ready ({time.monotonic() - start:.1f} s)")


if __name__ == "__main__":
    main()
