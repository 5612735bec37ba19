"""One URL for all models: finds the model that a request means, and a group that can answer it.

cli          the command line
app          puts the parts together
demand       reports demand to the operator, and so wakes models
http         the HTTP server, and requests to gateways
dispatcher   all pools, and the limits of their waiting requests
pool         seats at the groups of one ModelDeployment, and requests that wait for a seat
viewers      checks with the API server which users may see the fleet
watch        keeps the catalog current
certificate  the router's own certificate
tracing      spans of requests, if there is a collector
spans        spans with the SDK of OpenTelemetry
decide       decisions, without effects
"""
