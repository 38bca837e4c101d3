"""Prints the change points that Apache Otava finds in each series of the JSON on stdin."""

import json
import sys

from otava.analysis import compute_change_points

json.dump(
    [
        [int(change.index) for change in compute_change_points(series)[0]]
        for series in json.load(sys.stdin)
    ],
    sys.stdout,
)
