"""A crowd of clients in a process of its own: ``python serve_client.py URL FILE`` sends what FILE holds, all at once.

FILE is JSON: {"requests": [{"path", "body" (object) or "raw" (text)}]}. The answers go to standard output, in order:
[[status, body], ...]; a status of 0 means that there was no answer.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def main(url: str, file: str) -> None:
    """Send all requests at the same moment, each on a connection of its own."""
    host = urlsplit(url)
    requests = json.loads(Path(file).read_text("utf-8"))["requests"]
    answers: list[Any] = [None] * len(requests)
    start = threading.Barrier(len(requests))

    def ask(index: int, item: dict[str, Any]) -> None:
        raw = item["raw"] if "raw" in item else json.dumps(item["body"])
        connection = http.client.HTTPConnection(str(host.hostname), host.port, timeout=300)
        try:
            start.wait()
            connection.request("POST", item["path"], raw.encode())
            answer = connection.getresponse()
            answers[index] = [answer.status, json.loads(answer.read())]
        except (OSError, http.client.HTTPException, ValueError) as error:
            answers[index] = [0, repr(error)]
        finally:
            connection.close()

    threads = [threading.Thread(target=ask, args=pair) for pair in enumerate(requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
