"""Several gateways on the same Redis nodes, the crowd before them, and what the nodes tell of themselves.

Processes, ports and the origin are those of benches/compare; each gateway has one worker.
"""

import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import datetime

import load
import servers

GATEWAY_CORE, LOAD_CORE = "0", "1"

ALGORITHMS = ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket"]


class Fleet:
    """Started nodes and gateways; `limits` is quota and algorithm of each path."""

    def __init__(self, running, place, program, nodes=1, gateways=1, limits=(("/*", "1000000000/1h", None),), store="", ttl="10ms"):
        self.place = place
        place.origin = running.start(*servers.origin(place), cores=LOAD_CORE).port
        self.nodes = [running.start(*servers.redis(place), cores=LOAD_CORE) for _ in range(nodes)]
        self.gateways = []
        for _ in range(gateways):
            port, admin = servers.free_port(), servers.free_port()
            text = self.configuration(port, admin, limits, store, ttl)
            command = [str(program), "run", "--workers", "1", "--config", place.write(f"staunch-{port}.toml", text)]
            gateway = running.start("staunch", port, command, cores=GATEWAY_CORE)
            gateway.admin = admin
            self.gateways.append(gateway)
        self.wait_for_the_nodes()

    def configuration(self, port, admin, limits, store, ttl):
        named = ", ".join(f'{{ name = "n{i}", url = "redis://127.0.0.1:{node.port}" }}' for i, node in enumerate(self.nodes))
        text = f"""[[listeners]]
address = "127.0.0.1:{port}"
[admin]
address = "127.0.0.1:{admin}"
[log]
access = "off"
[store]
backend = "redis"
[store.redis]
nodes = [{named}]
{store or 'timeout = "2s"'}
[hot_keys]
ttl = "{ttl}"
[upstreams.origin]
endpoints = ["http://127.0.0.1:{self.place.origin}"]
"""
        for i, (path, quota, algorithm) in enumerate(limits):
            algorithm = f', algorithm = "{algorithm}"' if algorithm else ""
            text += f"""[policies.p{i}]
limits = [{{ name = "l", key = "header:x-user", on_missing_key = "shared", quota = "{quota}"{algorithm} }}]
[[routes]]
path = "{path}"
upstream = "origin"
policies = ["p{i}"]
"""
        return text

    def wait_for_the_nodes(self):
        deadline = time.monotonic() + 10
        while any(self.metric(gateway, "staunch_store_up") < len(self.nodes) for gateway in self.gateways):
            if time.monotonic() > deadline:
                raise SystemExit("a gateway does not reach its nodes")
            time.sleep(0.02)

    def ask(self, gateway, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{gateway.admin}{path}", timeout=5) as answer:
            return answer.read().decode()

    def metric(self, gateway, name):
        lines = self.ask(gateway, "/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(f"{name}[ {{]", line))

    def home_of(self, key):
        """The node of a key; a busy machine may answer too late at first."""
        for _ in range(50):
            try:
                return json.loads(self.ask(self.gateways[0], f"/limits/p0/l?key={key}"))["shard"]
            except urllib.error.HTTPError:
                time.sleep(0.1)
        raise SystemExit("the nodes do not answer in time")

    def script_calls(self):
        """Calls that all nodes have had; heartbeats are not among them."""
        told = [info(node, "commandstats") for node in self.nodes]
        return sum(int(found[1]) for text in told if (found := re.search(r"cmdstat_evalsha:calls=(\d+)", text)))

    def times_of(self, gateway, message):
        """When a line was logged, in µs since the epoch."""
        text = (self.place.folder / f"staunch-{gateway.port}.log").read_text(errors="replace")
        lines = [line.split(" ", 1)[0] for line in text.splitlines() if message in line]
        return [int(datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp() * 1e6) for stamp in lines]


def info(node, section):
    command = ["redis-cli", "-p", str(node.port), "info", section]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@dataclass
class Asked:
    sent_us: int
    took_us: int
    key: int
    status: int


class Crowd:
    """crowd.rs under way."""

    def __init__(self, root, place, gateways, keys, until, connections, path="/", rate=0, exponent=0.0):
        file = place.write(f"keys-{len(keys)}-{keys[0]}.txt", "\n".join(keys))
        addresses = [f"127.0.0.1:{gateway.port}" for gateway in gateways]
        program = root / "target/compare/crowd"
        numbers = [str(until), str(connections), str(rate), str(exponent)]
        command = ["taskset", "-c", LOAD_CORE, str(program), *numbers, path, file, *addresses]
        # Into a file: a pipe that nobody reads would hold the crowd up.
        self.told = place.folder / f"crowd-{time.monotonic_ns()}.txt"
        with open(self.told, "wb") as output:
            self.process = subprocess.Popen(command, stdout=output)
        self.deadline = until - time.time() + 30

    def result(self):
        if self.process.wait(self.deadline):
            raise SystemExit("the crowd failed")
        with open(self.told, encoding="utf-8") as lines:
            asked = [Asked(*map(int, line.split())) for line in lines]
        self.told.unlink()
        return asked


def build(root):
    load.build(root, "distributed/crowd.rs")
