#!/usr/bin/env python3
"""A pvesh whose node is a test server of the API, with the node's files in a folder: ID.conf, and what starts wrote.

Told where by GROUNDSTATE_TEST_PVE: {"url", "ca", "ticket", "csrf", "root"}. It answers as pvesh does: JSON, the log of
a task before it, errors with status 400 and usage on stderr.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import sys
import urllib.parse

TOLD = json.loads(os.environ["GROUNDSTATE_TEST_PVE"])
METHODS = {"get": "GET", "create": "POST", "set": "PUT", "delete": "DELETE"}


class Api:
    """The test server, over one connection and with the standard library alone: it is started for every call."""

    def __init__(self):
        host = urllib.parse.urlsplit(TOLD["url"])
        context = ssl.create_default_context(cafile=TOLD["ca"])
        self.connection = http.client.HTTPSConnection(host.hostname, host.port, timeout=60, context=context)
        self.headers = {
            "Cookie": "PVEAuthCookie=" + json.dumps(TOLD["ticket"]),
            "CSRFPreventionToken": TOLD["csrf"],
            "Content-Type": "application/x-www-form-urlencoded",
        }

    def request(self, method: str, path: str, given: dict[str, str]) -> tuple[int, dict]:
        path, text = "/api2/json" + path, urllib.parse.urlencode(given)
        if method in ("POST", "PUT"):
            self.connection.request(method, path, text, self.headers)
        else:
            self.connection.request(method, f"{path}?{text}", headers=self.headers)
        answer = self.connection.getresponse()
        return answer.status, json.load(answer)


def paths(vmid: str) -> tuple[str, str]:
    return f"{TOLD['root']}/etc/pve/lxc/{vmid}.conf", f"{TOLD['root']}/var/lib/lxc/{vmid}/config"


def write_conf(api: Api, vmid: str, start: bool) -> None:
    """ID.conf as PVE writes it: the description as comments, the keys sorted, the raw lines as they were."""
    conf, running = paths(vmid)
    raw = []
    if os.path.exists(conf):
        with open(conf, encoding="utf-8") as source:
            raw = [line.rstrip("\n") for line in source if line.startswith("lxc.")]
    status, answer = api.request("GET", f"/nodes/pve1/lxc/{vmid}/config", {"current": "1"})
    if status != 200:
        if os.path.exists(conf):
            os.unlink(conf)
        return
    config = answer["data"]
    comments = ["#" + line.replace(":", "%3A") for line in config.pop("description", "").splitlines()]
    config.pop("digest")
    lines = comments + [f"{key}: {config[key]}" for key in sorted(config)] + raw
    os.makedirs(os.path.dirname(conf), exist_ok=True)
    with open(conf, "w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")
    if start:
        os.makedirs(os.path.dirname(running), exist_ok=True)
        with open(running, "w", encoding="utf-8") as out:
            out.write("lxc.arch = amd64\n" + "".join(line.replace(": ", " = ", 1) + "\n" for line in raw))


def main() -> int:
    verb, path, *words = sys.argv[1:]
    given = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
    api = Api()
    status, said = api.request(METHODS[verb], path, given)
    if status != 200:
        start = "400 Parameter verification failed.\n" if status == 400 else said["message"]
        errors = "".join(f"{key}: {text}\n" for key, text in (said.get("errors") or {}).items())
        sys.stderr.write(f"{start}{errors}\npvesh {verb} {path} [OPTIONS] [FORMAT_OPTIONS]\n")
        return 2
    found = re.match(r"/nodes/pve1/lxc(?:/(\d+))?(/status/(?:start|reboot))?", path)
    if verb != "get" and found:
        write_conf(api, found.group(1) or given["vmid"], bool(found.group(2)))
    data = said["data"]
    if isinstance(data, str) and data.startswith("UPID:"):
        print("the log of the task")
    print(json.dumps(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
