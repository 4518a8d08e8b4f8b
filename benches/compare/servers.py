"""How each contender is configured and started: the same origin, the same pool of upstream connections, its own limit.

A limit is far away ("forwarded") or used up by the first request ("refused"). Everyone listens on a free port of the
loopback interface and is ended by its process id.
"""

import os
import random
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

BODY = "x" * 100


@dataclass
class Row:
    """One line of comparison."""

    name: str
    refused: bool = False
    log: bool = False
    redis: bool = False
    keys: int = 1
    tls: bool = False
    http2: bool = False


@dataclass
class Place:
    """Where files go and whom the next proxy forwards to."""

    folder: Path
    origin: int = 0
    redis: list = field(default_factory=list)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def certificate(self):
        """A certificate and its key, made once; everyone serves the same."""
        certificate, key = self.folder / "cert.pem", self.folder / "key.pem"
        if not key.exists():
            kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
            names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
            files = ["-keyout", str(key), "-out", str(certificate)]
            subprocess.run(["openssl", "req", "-x509", *kind, "-days", "2", *names, *files], check=True, capture_output=True)
            (self.folder / "both.pem").write_text(certificate.read_text() + key.read_text())
        return certificate, key


def free_port():
    """Below the ports that the kernel gives to outgoing connections, so that none of those can take it meanwhile."""
    while True:
        port = random.randrange(16000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Running:
    """The processes of one measurement; leaving it ends them all."""

    def __init__(self, place):
        self.place, self.processes = place, []

    def __enter__(self):
        return self

    def start(self, name, port, command, cores):
        path = self.place.folder / f"{name}-{port}.log"
        with open(path, "wb") as output:
            process = subprocess.Popen(["taskset", "-c", cores, *command], stdout=output, stderr=output)
        server = Server(port, process)
        self.processes.append(server)
        deadline = time.monotonic() + 10
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return server
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{name} does not serve:\n{path.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)

    def __exit__(self, *_):
        for server in reversed(self.processes):
            server.process.terminate()
            try:
                server.process.wait(5)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()
        for log in self.place.folder.glob("*.log"):
            log.unlink()


@dataclass
class Server:
    port: int
    process: subprocess.Popen

    def cpu_seconds(self):
        """User and system time of the process, its threads and its children."""
        pids, ticks = [self.process.pid], 0
        for pid in pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += [int(child) for child in (task / "children").read_text().split()]
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(after_name[11]) + int(after_name[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def nginx_file(place, name, port, http):
    temporary = "".join(
        f"  {kind}_temp_path {place.folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return place.write(
        f"{name}.conf",
        f"""daemon off;
worker_processes 1;
pid {place.folder}/{name}.pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
{temporary}  keepalive_requests 1000000000;
  {http.replace("PORT", str(port))}
}}
""",
    )


def origin(place):
    port = free_port()
    http = f"""access_log off;
  server {{
    listen 127.0.0.1:PORT backlog=4096;
    location / {{ default_type text/plain; return 200 "{BODY}"; }}
    location = /seen {{ stub_status; }}
  }}"""
    return "origin", port, ["nginx", "-c", nginx_file(place, "origin", port, http)]


def nginx_listen(place, row):
    """The listener's line, and the certificate's where there is one."""
    words = ["listen 127.0.0.1:PORT backlog=4096", *(["ssl"] if row.tls else []), *(["http2"] if row.http2 else [])]
    lines = [" ".join(words) + ";", *(["http2_max_requests 1000000000;"] if row.http2 else [])]
    if row.tls:
        certificate, key = place.certificate()
        lines.append(f"ssl_certificate {certificate}; ssl_certificate_key {key};")
    return " ".join(lines)


def nginx(place, row):
    port = free_port()
    # nginx counts in milliseconds, so 1000 a millisecond with a burst is a limit that is looked up and never reached.
    rate, burst = ("1r/m", "") if row.refused else ("1000000r/s", "burst=100000 nodelay")
    log = f"access_log {place.folder}/nginx-access.log;" if row.log else "access_log off;"
    http = f"""{log}
  limit_req_zone $binary_remote_addr zone=ip:10m rate={rate};
  upstream origin {{ server 127.0.0.1:{place.origin}; keepalive 128; keepalive_requests 1000000000; }}
  server {{
    {nginx_listen(place, row)}
    location / {{
      limit_req zone=ip {burst};
      limit_req_status 429;
      proxy_pass http://origin;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }}
  }}"""
    return "nginx", port, ["nginx", "-c", nginx_file(place, "nginx", port, http)]


# What Staunch's answers carry, as far as nginx can: so that a row compares the same job too, and not only the same limit.
FIELDS = 'add_header X-RateLimit-Limit 1 always; add_header X-RateLimit-Remaining 0 always; add_header X-RateLimit-Reset 1 always;'
REFUSAL = (
    '{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,'
    '"detail":"Over the limit per-client; try again in 1 s.","violated-policies":["per-client"],"retry_after_ms":1000}'
)


def nginx_same_job(place, row):
    """nginx with two limits, our forwarding fields, our answers' fields and our refusal's body; all of them constant."""
    port = free_port()
    rate, burst = ("1r/m", "") if row.refused else ("1000000r/s", "burst=100000 nodelay")
    log = f"access_log {place.folder}/nginx-access.log;" if row.log else "access_log off;"
    http = f"""{log}
  limit_req_zone $binary_remote_addr zone=ip:10m rate={rate};
  limit_req_zone $server_name zone=all:10m rate={rate};
  upstream origin {{ server 127.0.0.1:{place.origin}; keepalive 128; keepalive_requests 1000000000; }}
  server {{
    {nginx_listen(place, row)}
    error_page 429 @refused;
    location / {{
      limit_req zone=ip {burst};
      limit_req zone=all {burst};
      limit_req_status 429;
      {FIELDS}
      proxy_pass http://origin;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Host $http_host;
      proxy_set_header Via "1.1 nginx";
      proxy_set_header X-Request-Id $request_id;
    }}
    location @refused {{
      {FIELDS}
      add_header Retry-After 1 always;
      default_type application/problem+json;
      return 429 '{REFUSAL}';
    }}
  }}"""
    return "nginx, same job", port, ["nginx", "-c", nginx_file(place, "nginx-same", port, http)]


def haproxy(place, row):
    port = free_port()
    most = 0 if row.refused else 1_000_000_000
    tls = ""
    if row.tls:
        place.certificate()
        tls = f" ssl crt {place.folder}/both.pem alpn {'h2' if row.http2 else 'http/1.1'}"
    text = f"""global
  nbthread 1
  maxconn 4096
  {"log stderr format raw local0" if row.log else ""}
defaults
  mode http
  timeout connect 1s
  timeout client 75s
  timeout server 30s
  {"option httplog" if row.log else ""}
  {"log global" if row.log else ""}
frontend front
  bind 127.0.0.1:{port} backlog 4096{tls}{" proto h2" if row.http2 and not row.tls else ""}
  stick-table type ip size 1m expire 1h store http_req_rate(10s)
  http-request track-sc0 src
  http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {most} }}
  option forwardfor
  default_backend back
backend back
  http-reuse always
  server origin 127.0.0.1:{place.origin}
"""
    return "haproxy", port, ["haproxy", "-db", "-f", place.write("haproxy.cfg", text)]


def staunch(place, row, program):
    port = free_port()
    quota = "1/1h" if row.refused else "1000000000/1h"
    key = '"header:x-user"' if row.keys > 1 else '"client_ip"'
    second = '["header:x-user", "route"]' if row.keys > 1 else '"global"'
    store = ""
    if row.redis:
        nodes = ", ".join(f'"redis://127.0.0.1:{node}"' for node in place.redis)
        store = f'[store]\nbackend = "redis"\non_failure = "closed"\n[store.redis]\ntimeout = "2s"\nnodes = [{nodes}]\n'
    tls = ""
    if row.tls:
        certificate, private_key = place.certificate()
        tls = f'tls = {{ certificate = "{certificate}", private_key = "{private_key}" }}'
    text = f"""[[listeners]]
address = "127.0.0.1:{port}"
{tls}
{store}
[log]
access = "{"all" if row.log else "off"}"

[upstreams.origin]
endpoints = ["http://127.0.0.1:{place.origin}"]

[policies.bench]
limits = [
  {{ name = "first", key = {key}, quota = "{quota}" }},
  {{ name = "second", key = {second}, quota = "1000000000/1h" }},
]

[[routes]]
path = "/*"
upstream = "origin"
policies = ["bench"]
"""
    return "staunch", port, [str(program), "run", "--config", place.write("staunch.toml", text), "--workers", "1"]


def redis(place):
    port = free_port()
    options = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--dir", str(place.folder)]
    return "redis", port, ["redis-server", "--port", str(port), *options]


def versions(*commands):
    """What took part, as each of them tells it."""
    told = [subprocess.run(command, capture_output=True, text=True, check=False) for command in commands]
    return ", ".join((answer.stdout or answer.stderr).splitlines()[0].removeprefix("nginx version: ") for answer in told)
