"""Prometheus, Alertmanager and Grafana for servers: all files here are written by this package.

`python -m monitoring` writes them anew; `make monitoring` runs what Debian has of them.
"""
