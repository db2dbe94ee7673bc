#!/usr/bin/env python3
"""Prints the state of each surface of the Holdfast daemon. Needs nothing but the standard library."""
import json
import os
import socket
import sys

root = os.environ.get("HOLDFAST_ROOT") or os.path.expanduser("~/.holdfast")
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.path.join(root, "data", "holdfast.sock"))
stream = connection.makefile("rw", encoding="utf-8", newline="\n")


def call(number, method, params):
    """Sends one request, waits for its answer, returns the result."""
    request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    stream.write(json.dumps(request) + "\n")
    stream.flush()
    for line in stream:
        answer = json.loads(line)
        if answer.get("id") == number:  # anything else is a notification
            break
    else:
        sys.exit("the daemon closed the connection")
    if "error" in answer:
        sys.exit(f"{method}: {answer['error']['message']}")
    return answer["result"]


call(1, "initialize", {"protocol_version": 1, "client": {"name": "status.py", "version": "1"}})
for surface in call(2, "daemon/status", {})["surfaces"]:
    print(f"{surface['name']:<16} {surface['state']:<10} generation {surface['generation']}")
