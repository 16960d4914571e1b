"""``python -m bench``: see the package."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from .contests import CONTESTS
from .ground import spread
from .machine import about
from .origin import begin
from .plan import FULL, QUICK, Plan
from .plot import draw
from .report import markdown
from .results import Results
from .stage import Stage

ENVIRON = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_TARGET_DEVICE": "cpu",
}
PLACES = ("/var/tmp", tempfile.gettempdir())


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it has begun
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]  # the origin is here
    os.environ.update(ENVIRON)
    chosen = [name for name in CONTESTS if name in (arguments.only or CONTESTS)]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as scratch:
        spread(Path(scratch))
        results = _run(QUICK if arguments.quick else FULL, Path(scratch), chosen, _command(arguments))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "results.json").write_text(json.dumps(results.as_json(), indent=1) + "\n", encoding="utf-8")
    text = markdown(results)
    (arguments.out / "results.md").write_text(text, encoding="utf-8")
    try:
        draw(results, arguments.out / "results")
    except ModuleNotFoundError as error:
        print(f"no picture: {error.name} is not installed", file=sys.stderr)
    print(text)
    return 0


def _run(plan: Plan, scratch: Path, chosen: list[str], command: str) -> Results:
    files = scratch / "files"
    with begin(files, plan.whole) as origin:
        results = Results(about(command, origin.name, scratch))
        with Stage(plan, origin, scratch, files, results) as stage:
            for run in [CONTESTS[name](stage) for name in chosen]:
                run()
    return results


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure this cache and its peers.")
    parser.add_argument("--quick", action="store_true", help="less of everything, in less than two minutes")
    parser.add_argument("--only", nargs="+", choices=CONTESTS, metavar="CONTEST", help=f"of {', '.join(CONTESTS)}")
    parser.add_argument("--out", type=Path, default=Path("docs/bench"), help="folder for the results (%(default)s)")
    place = next((Path(place) for place in PLACES if os.access(place, os.W_OK)), None)
    parser.add_argument("--folder", type=Path, default=place, help="where caches keep what they keep (%(default)s)")
    return parser.parse_args()


def _command(arguments: argparse.Namespace) -> str:
    """The one that repeats a run, without what is only of this machine."""
    options = ["--quick"] if arguments.quick else []
    options += ["--only", *arguments.only] if arguments.only else []
    return " ".join(["nox -s bench", *(["--", *options] if options else [])])


if __name__ == "__main__":
    sys.exit(main())
