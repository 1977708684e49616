"""Random requests made from the OpenAPI document: none of them may end in a server error."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from serve_support import service, until

from dept.serve.api import create_app

EXAMPLES = 15


@pytest.fixture
def server(model_file: Path, pool_folder: Path) -> Iterator[tuple[Any, str]]:
    """A server in a thread. Adaptations are accepted and wait for ever; a domain and a version exist."""
    opened = service(model_file, pool_folder, learners=0)
    opened.jobs._begin = lambda: None  # type: ignore[method-assign]
    app = create_app(opened)
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=running.run)
    thread.start()
    until(lambda: running.started)
    yield app, f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True
    thread.join()


@pytest.mark.filterwarnings("ignore")
def test_no_request_ends_in_a_server_error(server: tuple[Any, str]) -> None:
    app, url = server
    statuses: Counter[int] = Counter()
    operations = [found.ok() for found in schemathesis.openapi.from_dict(app.openapi()).get_all_operations()]
    assert len(operations) >= 20
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        def check(case: Any) -> None:
            answer = case.call(base_url=url)
            statuses[answer.status_code] += 1
            assert answer.status_code < 500, (case.as_curl_command(), answer.text)

        check()
    assert sum(statuses.values()) >= 10 * len(operations) and statuses[200] and statuses[404] and statuses[422]
