"""httpx, in threads: one client for all of them, a limit for each host, and a path that is not
limited.

The service answers 429 to the fourth call at once. Run it: `python examples/with_httpx.py`
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
from services.strict import Strict

from headgate import Concurrency, Limiter
from headgate.http.httpx import limit

hosts = Limiter("hosts", Concurrency(3), "1000/second")


def main() -> None:
    with Strict(3) as service, httpx.Client(base_url=service.url) as client:
        limit(client, hosts, key="host", exempt=["/health"])
        with ThreadPoolExecutor(10) as threads:
            answers = list(threads.map(client.get, ["/"] * 20))
        client.get("/health")
        print(
            f"{service}; {sum(answer.is_success for answer in answers)} of {len(answers)} answered"
        )
        print(hosts["127.0.0.1"])


if __name__ == "__main__":
    main()
