#!/usr/bin/env python3
"""A pvesh whose node is a test server of the API, with the node's files in a folder: ID.conf, and what starts wrote.

Told where by GROUNDSTATE_TEST_PVE: {"url", "ca", "root"}. It answers as pvesh does: JSON, the log of a task before it,
errors with status 400 and usage on stderr, and it waits for tasks.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request

TOLD = json.loads(os.environ["GROUNDSTATE_TEST_PVE"])
METHODS = {"get": "GET", "create": "POST", "set": "PUT", "delete": "DELETE"}


class Api:
    """The test server, logged in to. With the standard library alone: it starts ten times as fast."""

    def __init__(self):
        self.context = ssl.create_default_context(cafile=TOLD["ca"])
        self.headers: dict[str, str] = {}
        _, ticket = self.request("POST", "/access/ticket", {"username": "root@pam", "password": "secret"})
        self.headers = {
            "Cookie": "PVEAuthCookie=" + json.dumps(ticket["data"]["ticket"]),
            "CSRFPreventionToken": ticket["data"]["CSRFPreventionToken"],
        }

    def request(self, method: str, path: str, given: dict[str, str]) -> tuple[int, dict]:
        url, text = TOLD["url"] + "/api2/json" + path, urllib.parse.urlencode(given)
        body = text.encode() if method in ("POST", "PUT") else None
        asked = urllib.request.Request(url if body is not None or not text else f"{url}?{text}", body, self.headers)
        asked.method = method
        try:
            with urllib.request.urlopen(asked, timeout=60, context=self.context) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


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
