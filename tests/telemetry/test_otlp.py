"""The metrics as a collector receives them: the exporter sends real OTLP over HTTP.

The table of docs/telemetry.md names each of them, with its instrument and unit.
"""

from __future__ import annotations

import gzip
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from headgate import Concurrency, Limiter, Window, log_writer
from headgate.http.feedback import Feedback
from headgate.http.redirects import depart
from headgate.http.token_estimates import Estimates
from headgate.telemetry.opentelemetry import instrument

PAGE = Path(__file__).parents[2] / "docs/telemetry.md"
ROW = re.compile(r"^\| `(headgate\.[a-z_.]+)` \| ([a-z -]+), (s|1|\{\w+\}) \|", re.MULTILINE)
# The instrument of the table, as the protocol writes it.
KINDS = {
    "observable counter": "monotonic sum",
    "observable up-down counter": "sum",
    "observable gauge": "gauge",
    "histogram": "histogram",
}


class Collector(ThreadingHTTPServer):
    """It decodes all that it receives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.metrics: list[Metric] = []
        self.spans: list[Any] = []

    def url(self, signal: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/{signal}"


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/metrics":
            for metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in metrics.scope_metrics:
                    assert scope.scope.name == "headgate"
                    self.server.metrics += scope.metrics
        else:
            for spans in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in spans.scope_spans:
                    self.server.spans += scope.spans
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """The log is no part of the test."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def exporting(collector: Collector) -> Iterator[TracerProvider]:
    """Instrument, and send all that was recorded at the end."""
    exporter = OTLPMetricExporter(endpoint=collector.url("metrics"))
    meters = MeterProvider([PeriodicExportingMetricReader(exporter)], shutdown_on_exit=False)
    tracers = TracerProvider(shutdown_on_exit=False)
    processor = SimpleSpanProcessor(OTLPSpanExporter(endpoint=collector.url("traces")))
    tracers.add_span_processor(processor)
    on = instrument(meters, tracer_provider=tracers, use_time=True)
    yield tracers
    meters.force_flush()
    on.uninstrument()
    meters.shutdown()
    tracers.shutdown()


def shape(metric: Metric) -> tuple[str, str]:
    kind = metric.WhichOneof("data") or ""
    monotonic = "monotonic " if kind == "sum" and metric.sum.is_monotonic else ""
    return monotonic + kind, metric.unit


def points(metric: Metric, limiter: str) -> dict[str, Any]:
    """The points of a limiter, by the values of their other attributes."""
    found = {}
    for point in getattr(metric, metric.WhichOneof("data") or "").data_points:
        attributes = {each.key: each.value.string_value for each in point.attributes}
        if attributes.pop("headgate.limiter.name", None) == limiter:
            found[",".join(attributes.values())] = point
    return found


def test_a_collector_receives_each_metric_of_the_table(
    redis_url: str, name: str, collector: Collector
) -> None:
    estimates = Estimates()
    estimates.learn_input("model", characters=400, estimated=100, used=80)
    with exporting(collector) as tracers:
        limiter = Limiter(name, Concurrency(1), Window(1000, 3600, unit="tokens"), store=redis_url)

        def call(_: int) -> None:
            with tracers.get_tracer("test").start_as_current_span("call"):
                for _ in range(10):
                    with limiter.acquire(tokens=10) as permit:
                        permit.settle(tokens=8)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(call, range(4)))
        with limiter.acquire(tokens=1) as permit:
            limiter.pause(0.001)
            Feedback().apply([(limiter, permit)], depart("host"), 429, {})
        assert limiter.flush() is None
        assert log_writer.flush()

    table = {metric: (KINDS[kind], unit) for metric, kind, unit in ROW.findall(PAGE.read_text())}
    assert {each.name: shape(each) for each in collector.metrics} == table

    found = {each.name: points(each, name) for each in collector.metrics}
    acquires = {outcome: point.as_int for outcome, point in found["headgate.acquires"].items()}
    assert acquires["passed"] + acquires["waited"] == sum(acquires.values()) == 41
    assert found["headgate.cost"]["tokens"].as_int == 401
    assert found["headgate.cost.returned"]["tokens"].as_int == 80
    waits = found["headgate.acquire.wait_time"]["waited"]
    assert waits.count == acquires["waited"] == sum(waits.bucket_counts)
    assert (waits.explicit_bounds[0], waits.explicit_bounds[-1]) == (0.001, 300)
    assert found["headgate.permit.use_time"][""].count == 41
    assert found["headgate.budget.usage"]["tokens,window"].as_int == 321
    assert found["headgate.budget.limit"]["permits,concurrency"].as_int == 1
    assert found["headgate.http.refusals"]
    assert {
        each.sum.aggregation_temporality for each in collector.metrics if each.HasField("sum")
    } == {AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE}

    calls = {each.span_id for each in collector.spans if each.name == "call"}
    waited = [each for each in collector.spans if each.name == "headgate.wait"]
    assert {each.parent_span_id for each in waited} <= calls
    assert 0 < len(waited) <= acquires["waited"]
