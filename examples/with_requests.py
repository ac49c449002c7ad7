"""requests, in threads: one session for all of them; a request that urllib3 sends again waits its
turn again.

The service answers 429 to the fourth call at once, and 503 to its first /busy. Run it: `python
examples/with_requests.py`
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import requests
from requests.adapters import HTTPAdapter
from services.strict import Strict
from urllib3.util.retry import Retry

from headgate import Concurrency, Limiter
from headgate.http.requests import limit

api = Limiter("api", Concurrency(3), "1000/hour")


def main() -> None:
    with Strict(3) as service, requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=Retry(2, status_forcelist=[503])))
        limit(session, api)  # the adapters that are there, with their pools and their retries
        with ThreadPoolExecutor(10) as threads:
            answers = list(threads.map(session.get, [service.url] * 20))
        print(f"{service}; {sum(answer.ok for answer in answers)} of {len(answers)} answered")

        session.get(f"{service.url}/busy", timeout=1)
        print(
            f"{api.status().limits[1].used} of 22 attempts counted, {api.status().limits[0].used} "
            "under way"
        )


if __name__ == "__main__":
    main()
