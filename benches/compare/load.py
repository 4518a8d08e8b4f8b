"""The load and what is read off it: wrk for full load, h2load for it over HTTP/2, load.rs for a constant rate, and the
check of every answer."""

import http.client
import json
import os
import platform
import re
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

# wrk calls `done` once at the end, so a run without keys costs nothing in Lua.
REPORT = """
done = function(summary, latency, requests)
  io.write(string.format("\\nRESULT %d %d %d %d %f %f\\n", summary.requests, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout, summary.duration,
    latency:percentile(50), latency:percentile(99)))
end
"""

# Requests with another key each, built before the load begins.
KEYS = """
local built, at = {}, 0
init = function()
  for i = 1, %d do built[i] = wrk.format("GET", "/", {["x-user"] = "user-" .. i}) end
end
request = function() at = at %% #built + 1; return built[at] end
"""


@dataclass
class Result:
    requests: int
    not_2xx: int
    broken: int
    rate: float
    p50_us: float
    p99_us: float


def url(port, row):
    return f"{'https' if row.tls else 'http'}://127.0.0.1:{port}/"


class Wrk:
    """`wrk -t1` on its own core against one port."""

    def __init__(self, port, connections, core, row, folder):
        script = folder / "wrk.lua"
        script.write_text(REPORT + (KEYS % row.keys if row.keys > 1 else ""))
        self.script, self.folder = script, folder
        self.command = ["taskset", "-c", core, "wrk", "-t1", f"-c{connections}", "-s", str(script)]
        self.url = url(port, row)

    def run(self, seconds):
        command = [*self.command, f"-d{seconds}s", self.url]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 20).stdout
        line = next(line for line in output.splitlines() if line.startswith("RESULT "))
        requests, not_2xx, broken, duration_us, p50, p99 = line.split()[1:]
        rate = 1e6 * int(requests) / int(duration_us)
        return Result(int(requests), int(not_2xx), int(broken), rate, float(p50), float(p99))


class H2load:
    """`h2load -t1` on its own core: 10 connections with 100 streams each. It tells no percentiles."""

    def __init__(self, port, core, row):
        self.command = ["taskset", "-c", core, "h2load", "-t1", "-c10", "-m100"]
        self.url = url(port, row)

    def run(self, seconds):
        command = [*self.command, "-D", str(seconds), self.url]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 20).stdout
        rate = float(re.search(r", ([\d.]+) req/s", output)[1])
        total, failed, errored = (int(re.search(rf"(\d+) {word}", output)[1]) for word in ("done", "failed", "errored"))
        ok = int(re.search(r"status codes: (\d+) 2xx", output)[1])
        return Result(total, total - ok, failed + errored - (total - ok), rate, 0.0, 0.0)


def sample(port, count, row):
    """The statuses of a few answers on one connection, over HTTP/1.1."""
    if row.http2 and not row.tls:
        return [429 if row.refused else 200]  # nginx and HAProxy speak one protocol there; the load has checked its own
    if row.tls:
        unchecked = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=unchecked)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    statuses = []
    for _ in range(count):
        connection.request("GET", "/", headers={"x-user": "user-1"})
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    connection.close()
    return statuses


def seen_by(origin):
    """How many requests the origin has had, this one included."""
    connection = http.client.HTTPConnection("127.0.0.1", origin, timeout=5)
    connection.request("GET", "/seen")
    counts = connection.getresponse().read().decode().splitlines()[2].split()
    connection.close()
    return int(counts[2])


def check(row, result, seen, statuses):
    """Forwarded is all 200 and all of it reached the origin; refused is all 429 and nothing did."""
    wanted = 429 if row.refused else 200
    wrong = result.requests - result.not_2xx if row.refused else result.not_2xx
    # The load leaves with requests under way, which the origin has seen and it has not counted.
    reached = seen == 0 if row.refused else 0 <= seen - result.requests <= 2000
    if result.requests == 0 or wrong or result.broken or not reached or set(statuses) != {wanted}:
        raise SystemExit(f"{row.name}: not all answers are {wanted}: {result}, {seen} reached the origin, then {statuses}")


def build(root, source="compare/load.rs"):
    """A load of our own; of the standard library alone, so that it needs no crate and no linking of ours."""
    program = root / "target/compare" / Path(source).stem
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["rustc", "--edition", "2024", "-O", "-o", str(program), str(root / "benches" / source)], check=True)
    return program


def paced(root, port, rate, seconds, core, keys):
    """Percentiles in microseconds at a constant rate."""
    command = ["taskset", "-c", core, str(root / "target/compare/load"), f"127.0.0.1:{port}", str(rate), str(seconds), str(keys)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=False)
    if output.returncode:
        raise SystemExit(f"the load failed: {output.stderr}")
    return json.loads(output.stdout)


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, load average {load}"
