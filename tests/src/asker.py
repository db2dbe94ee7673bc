"""Asks the daemon about sessions from wherever it runs, and prints what it may see as JSON.

    asker.py SOCKET AGENT=SESSION...

For each session: whether it is listed, and whether status, history, load and prompt find it.
"""

import json
import socket
import sys


class Connection:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rb")
        self.last = 0
        self.call("initialize", {"protocol_version": 1, "client": {"name": "asker", "version": "0"}})

    def call(self, method, params):
        self.last += 1
        request = {"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        while True:
            line = self.lines.readline()
            if not line:
                sys.exit(f"the daemon hung up on {method}")
            frame = json.loads(line)
            if frame.get("id") == self.last and "method" not in frame:
                return frame


def found(answer):
    """True, False, or the error in full when it is another than "not found"."""
    if "error" not in answer:
        return True
    error = answer["error"]
    if error["code"] == -32002 or error.get("data", {}).get("kind") == "not_found":
        return False
    return error


def main():
    path, wanted = sys.argv[1], [word.split("=") for word in sys.argv[2:]]
    rpc = Connection(path)
    listed = {row["session_id"] for row in rpc.call("session/list", {"kind": "acp"})["result"]["sessions"]}
    seen = {}
    for agent, session in wanted:
        by_id = {"session_id": session}
        acp = Connection(path)
        attached = acp.call("acp/attach", {"agent": agent})
        assert "result" in attached, attached
        acp.call("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        in_acp = {row["sessionId"] for row in acp.call("session/list", {})["result"]["sessions"]}
        again = {"sessionId": session, "cwd": "/", "mcpServers": []}
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "hi"}]}
        seen[session] = {
            "list": session in listed,
            "acp_list": session in in_acp,
            "status": found(rpc.call("session/show", by_id)),
            "history": found(rpc.call("session/events", {**by_id, "after_seq": 0})),
            "load": found(acp.call("session/load", again)),
            "prompt": found(acp.call("session/prompt", prompt)),
        }
    print(json.dumps(seen))


main()
