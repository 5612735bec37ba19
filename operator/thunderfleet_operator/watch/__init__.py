"""Events from the API server in, keys to work on out.

kopf_watch  kopf as the watcher
lists       lists that correct the cache where kopf reports no events
cache       the collections that the operator keeps in memory
claims      which ThunderboltLinks are kept, of Macs that have more than ports
lean        what the cache keeps of an object
workqueue   keys, each at most once, handed to one worker
leader      which replica acts: the holder of a Lease
components  whether scheduler and controller manager renew their Leases
"""
