"""The measurements with whole gateways: a hot key, how much of a limit is admitted, and a stopped node."""

import os
import signal
import statistics
import threading
import time
from collections import Counter

import fleet
import load
import servers


def heading(title, columns):
    print(f"\n**{title}**\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")


def hot(options, place):
    """One key at full speed on two gateways: calls that the node has, in all."""
    seconds, rounds = (2, 1) if options.quick else (5, 3)
    heading("One key at full speed on two gateways", ["", "requests/s", "store calls/s", "requests a call (peers: 1)"])
    rows = [
        ("admitted", "1000000000/1h", "10ms"),
        ("refused", "1/1h", "10ms"),
        ("admitted, `ttl = \"0ms\"`", "1000000000/1h", "0ms"),
    ]
    for name, quota, ttl in rows:
        told = [hot_once(options, place, quota, ttl, seconds) for _ in range(rounds)]
        rate, calls = (statistics.median(column) for column in zip(*told))
        print(f"| {name} | {rate:,.0f} | {calls:,.0f} | {rate / max(calls, 1):,.0f} |", flush=True)
    print("\nWanted: at most 250 calls a second, admitted and refused.")


def hot_once(options, place, quota, ttl, seconds):
    with servers.Running(place) as running:
        group = fleet.Fleet(running, place, options.staunch, gateways=2, limits=[("/*", quota, None)], ttl=ttl)
        loads = [load.Wrk(gateway.port, 25, fleet.LOAD_CORE, servers.Row("hot"), place.folder) for gateway in group.gateways]
        at_once(loads, 1)  # connections, a warm cache, the one request that is allowed
        before, begun = group.script_calls(), time.monotonic()
        results = at_once(loads, seconds)
        calls, took = group.script_calls() - before, time.monotonic() - begun
        refused = quota.startswith("1/")
        if any(result.broken or result.not_2xx != (result.requests if refused else 0) for result in results):
            raise SystemExit(f"not all answers were what the limit says: {results}")
        return sum(result.rate for result in results), calls / took


def at_once(loads, seconds):
    results = {}
    threads = [threading.Thread(target=lambda wrk=wrk: results.update({wrk: wrk.run(seconds)})) for wrk in loads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[wrk] for wrk in loads]


LIMIT = 1000
WINDOWS = 2
KEYS = 1000


def accuracy(options, place):
    """How much of a limit four gateways admit together, for keys that are surely asked for more than it allows."""
    period = period_for(options, place)
    columns = ["algorithm", "keys over the limit", "admitted / allowed, all", "least", "most", "keys below it", "of them refused"]
    heading(f"{LIMIT} in {period} s, four gateways, keys by Zipf's law, {WINDOWS} windows", columns)
    limits = [(f"/{algorithm}", f"{LIMIT}/{period}s", algorithm) for algorithm in fleet.ALGORITHMS]
    with servers.Running(place) as running:
        group = fleet.Fleet(running, place, options.staunch, gateways=4, limits=limits)
        for algorithm in fleet.ALGORITHMS:
            print(row_of_accuracy(algorithm, visited(options, place, group, algorithm, period), period), flush=True)
    print(
        "\nWanted: 0.99–1.00. Allowed is the limit for each window; of a bucket its burst and what flowed in from a key's first request to "
        "its last answer. Over the limit: asked for at least 1.5 times as much as allowed, in each window; below: in all at most 0.8 of one limit."
    )


def period_for(options, place):
    """Long enough that the load, as this machine can bear it, is surely over the limit for some keys (`sure` of them)."""
    sure, shortest, longest = (2, 5, 30) if options.quick else (10, 20, 120)
    with servers.Running(place) as running:
        group = fleet.Fleet(running, place, options.staunch, gateways=4)
        asked = crowded(options, place, group, "probe", "/", time.time() + 2)
    key_rate = len(asked) / 2 / sure / sum(1 / rank for rank in range(1, KEYS + 1))
    return max(shortest, min(longest, round(2.5 * LIMIT / key_rate)))


def crowded(options, place, group, name, path, until):
    keys = [f"{name}-{number}" for number in range(KEYS)]
    return fleet.Crowd(options.root, place, group.gateways, keys, until, 32, path=path, exponent=1.0).result()


def visited(options, place, group, algorithm, period):
    """Whole windows from edge to edge, by the node's clock, which is this machine's."""
    begin = (time.time() // period + 1) * period
    time.sleep(max(0, begin + 0.005 - time.time()))
    asked = crowded(options, place, group, algorithm, f"/{algorithm}", begin + WINDOWS * period - 0.02)
    if any(request.status not in (200, 429) for request in asked):
        raise SystemExit(f"{algorithm}: {Counter(request.status for request in asked)}")
    return begin * 1e6, asked


def row_of_accuracy(algorithm, visit, period):
    begin_us, asked = visit
    by_key = {}
    for request in asked:
        by_key.setdefault(request.key, []).append(request)
    ratios, all_admitted, all_allowed, below, refused = [], 0, 0, 0, 0
    for requests in by_key.values():
        admitted = sum(request.status == 200 for request in requests)
        in_window = Counter(int((request.sent_us - begin_us) // (period * 1e6)) for request in requests)
        if all(in_window[window] >= 1.5 * LIMIT for window in range(WINDOWS)):
            allowed = LIMIT * WINDOWS
            if algorithm == "token_bucket":
                last_us = max(request.sent_us + request.took_us for request in requests)
                allowed = LIMIT + LIMIT / (period * 1e6) * (last_us - min(request.sent_us for request in requests))
            ratios.append(admitted / allowed)
            all_admitted, all_allowed = all_admitted + admitted, all_allowed + allowed
        elif len(requests) <= 0.8 * LIMIT:
            below, refused = below + 1, refused + len(requests) - admitted
    if not ratios:
        return f"| `{algorithm}` | 0: too little load | – | – | – | {below} | {refused} requests |"
    told = f"{all_admitted / all_allowed:.4f} | {min(ratios):.4f} | {max(ratios):.4f}"
    return f"| `{algorithm}` | {len(ratios)} | {told} | {below} | {refused} requests |"


TIMEOUT_MS, FAILURES = 50, 5


def stopped(options, place):
    """One of two nodes is stopped (SIGSTOP) and goes on, several times; the keys of each are asked for at a constant rate."""
    rounds, connections, rate = (2, 16, 500) if options.quick else (10, 16, 500)
    store = f'timeout = "{TIMEOUT_MS}ms"\nbreaker = {{ failures = {FAILURES}, retry_after = "500ms" }}'
    with servers.Running(place) as running:
        group = fleet.Fleet(running, place, options.staunch, nodes=2, store=store, ttl="0ms")
        homes = {"n0": [], "n1": []}
        for key in (f"key-{i}" for i in range(400)):
            homes[group.home_of(key)].append(key)
        until = time.time() + 1 + rounds * 4
        crowds = [fleet.Crowd(options.root, place, group.gateways, keys, until, connections, rate=rate) for keys in homes.values()]
        stops = [stop_for_a_while(group.nodes[0]) for _ in range(rounds)]
        touched, others = (crowd.result() for crowd in crowds)
        opened = group.times_of(group.gateways[0], "store shard is degraded")
    tell_of_stops(touched, others, stops, opened)


def stop_for_a_while(node):
    """When it stopped and went on, in µs since the epoch."""
    time.sleep(2)
    os.kill(node.process.pid, signal.SIGSTOP)
    stop = time.time()
    time.sleep(1.5)
    os.kill(node.process.pid, signal.SIGCONT)
    return int(stop * 1e6), int(time.time() * 1e6)


def tell_of_stops(touched, others, stops, opened):
    spans = [(stop, next((at for at in opened if stop <= at < end), end), end) for stop, end in stops]
    quiet = [(end_before + 1_200_000, stop) for end_before, stop in zip([stops[0][0] - 1_900_000] + [e for _, e in stops], [s for s, _ in stops])]
    first, open_ = [(stop, at) for stop, at, _ in spans], [(at, end) for _, at, end in spans]
    away = [(stop, end) for stop, end in stops]
    columns = ["", "requests", "p50", "p99", "most"]
    heading(f"A node stopped {len(stops)} times, timeout {TIMEOUT_MS} ms, {FAILURES} failures, `ttl = \"0ms\"`", columns)
    rows = [
        ("its keys, before", touched, quiet),
        (f"its keys, until the breaker opens ({statistics.median(at - stop for stop, at in first) / 1000:.0f} ms)", touched, first),
        ("its keys, while it is open", touched, open_),
        ("the other node's keys, before", others, quiet),
        ("the other node's keys, meanwhile", others, away),
    ]
    for name, asked, when in rows:
        within = [r for r in asked if any(begin <= r.sent_us < end for begin, end in when)]
        wrong = Counter(request.status for request in within if request.status != 200)
        took = sorted(request.took_us / 1000 for request in within)
        at = [took[min(len(took) - 1, len(took) * part // 100)] if took else 0 for part in (50, 99, 100)]
        print(f"| {name} | {len(took)}{f', not 200: {dict(wrong)}' if wrong else ''} | " + " | ".join(f"{ms:.2f} ms" for ms in at) + " |")
    print(
        f"\nWanted: p99 at most {TIMEOUT_MS + 5} ms until the breaker opens, then within 1 ms of the healthy node's; the other node's keys as before."
    )
