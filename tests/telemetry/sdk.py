"""The real SDK of OpenTelemetry, with a reader and an exporter in memory."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headgate import log_writer
from headgate.telemetry.opentelemetry import instrument

Row = tuple[dict[str, Any], Any]  # the attributes and the value of a point


class Telemetry:
    """The SDK's view: each look at the metrics is a collection."""

    def __init__(self, **options: Any) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False, **options)
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._on = instrument(self.provider, tracer_provider=self.tracers)

    def again(self, **options: Any) -> None:
        """Instrument once more, with other options."""
        self._on.uninstrument()
        self._on = instrument(self.provider, tracer_provider=self.tracers, **options)

    def stop(self) -> None:
        self._on.uninstrument()

    def collect(self) -> dict[str, Any]:
        """The metrics by name."""
        data = self._reader.get_metrics_data()
        return {
            metric.name: metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def rows(self, metric: str, **wanted: str) -> list[Row]:
        """The points of `metric` for a limiter or server, sorted."""
        found = self.collect().get(f"headgate.{metric}")
        points = found.data.data_points if found else ()
        return sorted(
            (
                (dict(each.attributes), getattr(each, "value", None) or getattr(each, "count", 0))
                for each in points
                if set(wanted.values()) <= {*each.attributes.values()}
            ),
            key=lambda row: sorted(map(str, row[0].items())),
        )

    def values(self, metric: str, name: str, attribute: str) -> dict[Any, Any]:
        """The values of a limiter's points but for 0, by one attribute. It has no other."""
        rows = self.rows(metric, limiter=name)
        assert all(
            row.keys() == {"headgate.limiter.name", f"headgate.{attribute}"} for row, _ in rows
        )
        return {row[f"headgate.{attribute}"]: value for row, value in rows if value}

    def spans(self) -> list[ReadableSpan]:
        """The spans of headgate."""
        assert log_writer.flush()
        found = self._spans.get_finished_spans()
        return [each for each in found if each.name == "headgate.wait"]
