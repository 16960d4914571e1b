"""Run the public suite and our own list against one transport, and compare with the tables in ``expected/``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from tests.conformance import trial
from tests.conformance.harness import differences
from tests.conformance.newer import CASES
from tests.conformance.processes import gateway
from tests.conformance.proxy import CLIENTS
from tests.conformance.suite import NAME, VERSION, Suite
from tests.conformance.table import Table, column, score
from tests.origin import Origin

Results = tuple[dict[str, str], dict[str, str]]  # kinds, and what was wrong: empty for what passed

EXPECTED = Path(__file__).with_name("expected")
PEERS = (  # on the suite's repository (150 required, 98 optimal), without the tests about CDNs and browsers
    ("Apache Traffic Server", 132, 70),
    ("Apache httpd", 131, 68),
    ("undici", 124, 65),
    ("Squid", 122, 59),
    ("hishel", 110, 69),
    ("nginx", 99, 59),
    ("CacheControl", 76, 33),
    ("vLLM's own cache", 5, 3),
    ("aiohttp-client-cache", 4, 9),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--client", choices=CLIENTS, required=True, help="whose transport")
    parser.add_argument("--private", action="store_true", help="a private cache (shared=False) instead of a shared one")
    parser.add_argument("--record", action="store_true", help="make the results the expected ones")
    parser.add_argument("--only", nargs="+", metavar="ID", help="run these tests only and show what happens")
    chosen = parser.parse_args()
    shared = not chosen.private
    if hidden := differences(chosen.client):
        sys.exit("\n".join(["the gateway is not transparent:", *hidden]))
    if chosen.only:
        return _show(chosen.client, shared, chosen.only)
    failed = passed = 0
    for run, title, file in ((_suite, f"{NAME} {VERSION}", "suite.tsv"), (_newer, "our own list", "newer.tsv")):
        good, bad = _compare(run, title, EXPECTED / file, chosen.client, shared=shared, record=chosen.record)
        passed += good
        failed += bad
    print("\nothers, of 150 required and 98 optimal on the suite's newer, unreleased list")
    print(*(f"  {peer:<22} {required:>3} {optimal:>3}" for peer, required, optimal in PEERS), sep="\n")
    print(f"\n{passed} passed, {failed} failed")
    return 1 if failed else 0


def _compare(
    run: Callable[..., Results], title: str, file: Path, client: str, *, shared: bool, record: bool
) -> tuple[int, int]:
    """Run a list and tell how it went: how many results are as expected, and how many are not."""
    name = column(client, shared=shared)
    kinds, results = run(client, shared=shared)
    table = Table(file)
    again = table.worse(name, results)  # by seconds, on a busy machine: what fails alone as well is no accident
    if again:
        results |= run(client, shared=shared, only=again)[1]
    if record:
        table.record(name, kinds, results)
    found = table.differences(name, results)
    print(f"\n{title}, {name}")
    for kind, (good, all_of_it) in score(kinds, results).items():
        print(f"  {kind:<9} {good:>3} of {all_of_it}")
    for test, said in found.items():
        print(f"  {test}: {said}")
    if saved := again - found.keys():
        print(f"  passed at the second try only: {', '.join(sorted(saved))}")
    return len(results.keys() - found), len(found)


def _suite(client: str, *, shared: bool, only: Collection[str] = (), show: bool = False) -> Results:
    """The public suite's tests."""
    suite = Suite()
    kinds = {test.id: test.kind for test in suite.tests() if test.applies(shared=shared)}
    with suite.origin() as origin, gateway(client, origin, _mode(shared=shared), show=show) as port:
        return kinds, suite.results(port, only or kinds, dump=show)


def _newer(client: str, *, shared: bool, only: Collection[str] = (), show: bool = False) -> Results:
    """Our own cases."""
    cases = [one for one in CASES.values() if one.applies(shared=shared) and (not only or one.id in only)]
    with Origin(trial.Now()) as origin, gateway(client, origin.port, _mode(shared=shared), show=show) as port:
        results = asyncio.run(trial.run(cases, port, origin))
        if show:
            print(*origin.requests, sep="\n")
        return {one.id: one.kind for one in cases}, results


def _show(client: str, shared: bool, only: Collection[str]) -> int:
    results: dict[str, str] = {}
    own = CASES.keys() & set(only)
    for run, tests in ((_newer, own), (_suite, set(only) - own)):
        if tests:
            results |= run(client, shared=shared, only=tests, show=True)[1]
    print(*(f"{test}: {wrong or 'passed'}" for test, wrong in results.items()), sep="\n")
    return 1 if any(results.values()) else 0


def _mode(*, shared: bool) -> str:
    return "shared" if shared else "private"


if __name__ == "__main__":
    sys.exit(main())
