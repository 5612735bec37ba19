"""The API of Thunderfleet: what every program reads and writes. No I/O.

apimodel         the base of all kinds: reading and writing objects of the API server
conditions       conditions: the type, reading and setting them
copies           the state of a model's files on one Mac
fetching         the result of a pod that reads from the hub
fields           types of fields with their bounds, figures as strings
generate         writes the CustomResourceDefinitions; scope, short name and printer columns of each kind
group            the state that a running group reports to the operator
modelcache       ModelCache: a model that Macs keep on their disks
modeldeployment  ModelDeployment: a model served across Macs
names            API group, kinds, labels, annotations, limits
nodeprofile      NodeProfile: what one Mac is and can do
nodes            what a Node shows about its kubelet
parts            parts of a model: which of its files a Mac needs
plan             the plan of one group, from the operator to its runners
podmetadata      labels and annotations that users put on pods, and those of Kueue's pod groups
quantization     quantization of a repository on a Mac: bits, group size, name of the result
reasons          every reason, with its meaning and remedy
routing          what the operator and the routers exchange: keys, routes, demand
thunderboltlink  ThunderboltLink: a cable between two Macs
uris             models at a URI: what a URI may be, and the name under which Macs keep the files
vocabulary       every enumeration
"""
