"""Every file of the monitoring, by its path; `python -m monitoring` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from monitoring.alerts import GROUPS
from monitoring.cases import EVERY, promtool
from monitoring.grafana import board
from monitoring.metrics import JOB, RECORDS
from monitoring.pages import PAGES
from nanovllm.observability.alerts import rule_file

HERE = Path(__file__).parent
SAYS = "# Written by `python -m monitoring`.\n"
SERVERS = [{"targets": ["127.0.0.1:8000"]}]
PROMETHEUS = {
    "global": {"scrape_interval": "5s", "evaluation_interval": "5s"},
    "rule_files": ["rules.yml"],
    "alerting": {"alertmanagers": [{"static_configs": [{"targets": ["127.0.0.1:9093"]}]}]},
    "scrape_configs": [
        {
            "job_name": JOB,
            "scrape_timeout": "4s",
            # a server that makes up labels without end is cut off, not stored
            "sample_limit": 2000,
            "label_value_length_limit": 200,
            "file_sd_configs": [{"files": ["servers.yml"]}],
        }
    ],
}
ALERTMANAGER = {
    "route": {
        "receiver": "page",
        "group_by": ["alertname", "job"],
        "group_wait": "10s",
        "group_interval": "5m",
        "repeat_interval": "4h",
        "routes": [
            {"receiver": "ticket", "matchers": ['severity="ticket"'], "repeat_interval": "24h"}
        ],
    },
    # a server that is down needs no further word; a page needs no ticket beside it
    "inhibit_rules": [
        {
            "source_matchers": ['alertname="ServerDown"'],
            "target_matchers": ['alertname!="ServerDown"'],
            "equal": ["job", "instance"],
        },
        {
            "source_matchers": ['alertname=~".*Burn(1H|6H)"'],
            "target_matchers": ['alertname=~".*Burn3D"'],
            "equal": ["job"],
        },
    ],
    # shown at Alertmanager's own page; say here whom else to tell
    "receivers": [{"name": "page"}, {"name": "ticket"}],
}


def rules() -> dict[str, Any]:
    """What is recorded, and the alerts."""
    records = {"name": "records", "rules": [record.to_dict() for record in RECORDS]}
    return {"groups": [records, *rule_file(GROUPS)["groups"]]}


def files() -> dict[str, str]:
    """Path below this folder -> text."""
    written = {
        "prometheus.yml": PROMETHEUS,
        "servers.yml": SERVERS,
        "alertmanager.yml": ALERTMANAGER,
        "rules.yml": rules(),
        **{f"rules_test_{every}m.yml": promtool(every) for every in EVERY},
    }
    found = {
        name: SAYS + yaml.safe_dump(data, sort_keys=False, width=100)
        for name, data in written.items()
    }
    for uid, (title, rows) in PAGES.items():
        found[f"dashboards/{uid}.json"] = board(uid, title, rows, traces=uid == "request")
    return found
