#!/usr/bin/env python3
"""A service that OpenTelemetry instruments, and a collector of OTLP for both ends of its calls.

`traced_server.py http` answers GET, and `traced_server.py grpc` answers score.ScoreService, each with the span that
OpenTelemetry's own instrumentation makes of a request. Prints `service ADDRESS` and `collector ADDRESS`. When its stdin
ends, it compares the service's spans with those that the collector was sent, and the lines of OTLP JSON in the files
that stdin named: each client span is the parent of a server span that lies within it, and phases lie within their
calls. Prints what it found as JSON.
"""

import http.server
import json
import pathlib
import sys
import threading
import time
import wsgiref.simple_server
from concurrent import futures
from socketserver import ThreadingMixIn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".peers" / "generated"))

try:
    import grpc
    import score_pb2
    import score_pb2_grpc
    from google.protobuf import json_format
    from opentelemetry.instrumentation.grpc import server_interceptor
    from opentelemetry.instrumentation.wsgi import OpenTelemetryMiddleware
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
        ExportTraceServiceResponse,
    )
    from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
except ImportError as missing:
    sys.exit(f"traced_server: {missing}: run `make setup`, and start this with .peers/venv/bin/python")

POSTS = []


class Collector(http.server.BaseHTTPRequestHandler):
    """Accepts spans as OpenTelemetry's own definition reads them."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kind = self.headers["Content-Type"]
        if self.path != "/v1/traces":
            self.send_error(404)
            return
        if kind == "application/x-protobuf":
            POSTS.append(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
        else:
            POSTS.append(from_json(body))
            answer = b"{}"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def from_json(text):
    """Parses OTLP's JSON, whose ids are hexadecimal where protobuf's own JSON has base64."""
    import base64

    document = json.loads(text)
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    if key in span:
                        span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return json_format.ParseDict(document, ExportTraceServiceRequest())


class ThreadingServer(ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 128


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *_):
        pass


def page(environ, start_response):
    # A body without a length ends with the connection, so the client's call ends after the server's span.
    status = "503 Service Unavailable" if environ["PATH_INFO"] == "/broken" else "200 OK"
    start_response(status, [("Content-Type", "text/plain")])
    yield b"a "
    time.sleep(0.002)
    yield b"page"


class Score(score_pb2_grpc.ScoreServiceServicer):
    def GetScore(self, request, context):
        time.sleep(0.002)
        if request.json == "[]":
            context.abort(grpc.StatusCode.NOT_FOUND, "no vector")
        return score_pb2.ScoreResponse(score=0.5)


def start_service(kind, provider):
    if kind == "http":
        app = OpenTelemetryMiddleware(page, tracer_provider=provider)
        server = ThreadingServer(("127.0.0.1", 0), Quiet)
        server.set_app(app)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_address[1]
    interceptor = server_interceptor(tracer_provider=provider)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), interceptors=[interceptor])
    score_pb2_grpc.add_ScoreServiceServicer_to_server(Score(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    start_service.server = server
    return port


def attributes(span):
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


def is_within(inner, outer):
    return outer[0] <= inner[0] <= inner[1] <= outer[1]


def check(requests, served):
    """Compares client spans with the service's; returns what a test asserts."""
    spans, resources = {}, []
    for request in requests:
        for resource in request.resource_spans:
            resources.append({a.key: a.value.string_value for a in resource.resource.attributes})
            for scope in resource.scope_spans:
                for span in scope.spans:
                    key = (span.trace_id, span.span_id)
                    assert len(span.trace_id) == 16 and len(span.span_id) == 8, span
                    assert key not in spans, f"twice: {span}"
                    spans[key] = span
    times = {key: (s.start_time_unix_nano, s.end_time_unix_nano) for key, s in spans.items()}
    calls, phases, kept, errors = [], {}, {}, 0
    for key, span in spans.items():
        if span.kind == Span.SPAN_KIND_CLIENT:
            calls.append(key)
            how = attributes(span)["plimsoll.kept_as"]
            kept[how] = kept.get(how, 0) + 1
            errors += span.status.code == Status.STATUS_CODE_ERROR
            continue
        parent = (span.trace_id, span.parent_span_id)
        assert is_within(times[key], times[parent]), f"{span} is not within {spans[parent]}"
        phases[span.name] = phases.get(span.name, 0) + 1
    parents = {}
    for span in served:
        if span.parent is not None:
            key = (span.parent.trace_id.to_bytes(16, "big"), span.parent.span_id.to_bytes(8, "big"))
            parents[key] = span
    matched = 0
    for key in calls:
        span = parents.get(key)
        assert span is not None, f"no server span below {spans[key]}"
        inner = (span.start_time, span.end_time)
        assert is_within(inner, times[key]), f"{inner} is not within {times[key]}: {spans[key]}"
        matched += 1
    names = sorted({(spans[key].name) for key in calls})
    shown = attributes(spans[calls[0]]) if calls else {}
    return {
        "requests": len(requests),
        "spans": len(spans),
        "calls": len(calls),
        "matched": matched,
        "phases": phases,
        "kept": kept,
        "errors": errors,
        "names": names,
        "resources": resources,
        "attributes": shown,
        "numbers": sorted(attributes(spans[key])["plimsoll.call"] for key in calls),
    }


def main():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    port = start_service(sys.argv[1], provider)
    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    print(f"service 127.0.0.1:{port}")
    print(f"collector 127.0.0.1:{collector.server_address[1]}", flush=True)
    files = [line.strip() for line in sys.stdin if line.strip()]
    lines = [line for file in files for line in pathlib.Path(file).read_text().splitlines()]
    requests = POSTS + [from_json(line) for line in lines]
    print(json.dumps(check(requests, exporter.get_finished_spans())))


main()
