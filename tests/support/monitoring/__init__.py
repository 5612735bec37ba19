"""Prometheus, Grafana and what they read.

externalmetrics     the API of external metrics, from the metrics of runners
panels              the dashboards' queries, and what scrapes the metrics for them
prometheusserver    a real Prometheus in a fleet, and its API
prometheusoperator  the kinds of prometheus-operator, and the configuration that it generates
grafana/            what Grafana's schema allows as a dashboard
"""
