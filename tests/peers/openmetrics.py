"""Reads metrics as Prometheus does: a page from a file, a line for each sample.

openmetrics.py PAGE
"""

import pathlib
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families

for family in text_string_to_metric_families(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")):
    print(f"{family.name} {family.type}: {family.documentation}")
    for sample in family.samples:
        labels = ",".join(f"{name}={value!r}" for name, value in sorted(sample.labels.items()))
        print(f"{sample.name}{{{labels}}} {sample.value:g}")
