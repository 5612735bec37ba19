"""The Grafana dashboards of the chart, written in Python: ``python -m thunderfleet_dashboards`` generates their JSON.

A dashboard is a ``Page``; ``panels`` has the common parts. Queries count a program once, however often it is scraped.

panels      pages, panels, variables, links
queries     PromQL that counts a program once even if it is scraped twice
fleet       all Macs and ModelDeployments
deployment  one ModelDeployment
group       the ranks of a group
cables      ThunderboltLinks
serving     requests, latency and errors against an objective
control     operator, agents, kubelets, routers
"""
