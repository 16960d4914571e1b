"""Everything at once, for a while: ``python -m tests.soak [--seconds 60] [--seed 1]``.

Four processes on one folder, each with httpx, aiohttp and requests on one cache and clients that give up at random,
before an origin that changes content, delays, truncates, resets, fails, redirects and signs; now and then one of the
processes is killed. Each answer is compared with what the origin had when it was asked, the folder with its bound,
and what is left at the end with nothing. Ends with status 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from typing import Any

from tests.folders import standing_still
from tests.soak.troublesome import serve
from tests.storage.helpers import occupied

PROCESSES = 4
MAX_SIZE = 24 * 1024**2  # octets; less than the resources together, so that eviction is part of it
KILL_EVERY = 6.0  # seconds, about
MEASURE_EVERY = 0.1  # seconds


class Process:
    """A worker and the last that it said."""

    def __init__(self, folder: str, base: str, seed: int, seconds: float) -> None:
        arguments = [folder, base, str(seed), str(max(seconds, 1.0)), str(MAX_SIZE)]
        command = [sys.executable, "-m", "tests.soak.worker", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.said: dict[str, Any] = {"counts": {}, "wrong": []}
        self.killed = False
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.endswith("}\n"):  # not the half of a line that a kill leaves
                    self.said = json.loads(line)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self.killed = True
        self._process.send_signal(signal.SIGKILL)
        self.wait(10)

    def wait(self, seconds: float) -> int:
        """Its exit status."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
            self.said["wrong"] = [*self.said["wrong"], "a process did not end"]
        self._listener.join(10)
        return status


def soak(seconds: float, seed: int) -> int:
    chance = random.Random(seed)
    origin = serve(seed)
    ended: list[Process] = []
    peak = kills = 0
    with tempfile.TemporaryDirectory(prefix="vllm-http-cache-soak-") as folder:
        end = time.monotonic() + seconds
        seeds = iter(range(seed * 1000, seed * 1000 + 1000))

        def start() -> Process:
            return Process(folder, origin.url(""), next(seeds), end - time.monotonic())

        running = [start() for _ in range(PROCESSES)]
        next_kill = time.monotonic() + KILL_EVERY
        while (now := time.monotonic()) < end:
            with standing_still([process.pid for process in running]):
                peak = max(peak, occupied(folder))
            if now > next_kill and end - now > KILL_EVERY:
                victim = chance.randrange(PROCESSES)
                running[victim].kill()
                ended.append(running[victim])
                running[victim] = start()
                kills += 1
                next_kill = now + KILL_EVERY * (0.5 + chance.random())
            time.sleep(MEASURE_EVERY)
        statuses = [process.wait(60) for process in running]
    origin_requests = origin.count()
    origin.close()
    return report([*ended, *running], statuses, peak, kills, origin_requests)


def report(processes: list[Process], statuses: list[int], peak: int, kills: int, origin_requests: int) -> int:
    counts: Counter[str] = Counter()
    leaked: Counter[str] = Counter()
    wrong: list[str] = []
    for process in processes:
        counts.update(process.said["counts"])
        leaked.update(process.said.get("leaked", {}))
        wrong += process.said["wrong"]
        if not process.killed and "leaked" not in process.said:
            wrong.append("a process did not come to its end")
    share = counts["from cache"] / max(counts["requests"], 1)
    print(f"requests answered      {counts['requests']}")
    by = {client: counts[f"by {client}"] for client in ("httpx", "aiohttp", "requests")}
    print("  of                   " + ", ".join(f"{client} {number}" for client, number in by.items()))
    print(f"  from the cache       {counts['from cache']} ({share:.0%})")
    print(f"requests at the origin {origin_requests}")
    print(f"given up by callers    {counts['given up']}")
    print(f"origin's own errors    {counts['errors'] + counts['origin errors']}")
    print(f"processes killed       {kills}")
    print(f"wrong answers          {len(wrong)}")
    for line in wrong[:10]:
        print(f"  {line}")
    print(f"left open              {dict(leaked)}")
    for process in processes:
        for what in process.said.get("left", ()):
            print(f"  {what}")
    print(f"peak of the folder     {peak} of {MAX_SIZE} octets{' - OVER THE BOUND' if peak > MAX_SIZE else ''}")
    bad = bool(wrong) or any(leaked.values()) or peak > MAX_SIZE or any(statuses) or not all(by.values())
    print(f"{0 if bad else 1} passed, {1 if bad else 0} failed")
    return int(bad)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sys.exit(soak(min(arguments.seconds, 900.0), arguments.seed))
