#!/usr/bin/env python3
"""Parses values of the header field traceparent, one per line, as OpenTelemetry does in a called service.

Prints the trace id and the span id of each; fails on a value that is invalid or not sampled.
"""

import sys

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    sys.exit(f"traceparent: {missing}: run `make setup`, and start this with .peers/venv/bin/python")

for line in sys.stdin:
    context = TraceContextTextMapPropagator().extract({"traceparent": line.rstrip("\n")})
    span = trace.get_current_span(context).get_span_context()
    if not (span.is_valid and span.trace_flags.sampled):
        sys.exit(f"{line!r} is not taken")
    print(f"{span.trace_id:032x} {span.span_id:016x}")
