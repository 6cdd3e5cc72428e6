"""What only the library's exposition shows."""

from prometheus_client.parser import text_string_to_metric_families

from lunanexa_adapters.prometheus.metrics import PrometheusMetrics


def test_exposition_is_what_the_librarys_parser_reads() -> None:
    metrics = PrometheusMetrics({"lunanexa_wait_seconds": "Time in the queue."})
    metrics.count("lunanexa_requests_total", {"outcome": "ok"})
    metrics.observe("lunanexa_wait_seconds", 0.3, buckets=(0.1, 0.5))
    content_type, body = metrics.render()
    assert content_type.startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert families["lunanexa_requests"].type == "counter"
    assert families["lunanexa_wait_seconds"].documentation == "Time in the queue."
    buckets = {
        sample.labels["le"]: sample.value for sample in families["lunanexa_wait_seconds"].samples if sample.labels
    }
    assert buckets == {"0.1": 0.0, "0.5": 1.0, "+Inf": 1.0}
    assert not any(name.endswith("_created") for name in families)


def test_the_process_is_in_it() -> None:
    body = PrometheusMetrics().render()[1].decode()
    assert "process_resident_memory_bytes " in body
    assert "process_open_fds " in body
