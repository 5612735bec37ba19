"""The API of Thunderfleet: what every program reads and writes. No I/O.

Packages:

kinds       the resources of the API: ModelDeployment, ModelCache, NodeProfile, ThunderboltLink
meta        what several kinds consist of: the base class, types of fields, conditions
exchange    what programs exchange beside the kinds: plans, states of groups, routes
weights     models as files: the parts that a Mac needs, copies, quantization

Modules:

generate    writes the CustomResourceDefinitions; scope, short name and printer columns of each kind
fetching    the result of a pod that reads from the hub
names       API group, kinds, labels, annotations, limits
reasons     every reason, with its meaning and remedy
uris        models at a URI: what a URI may be, and the name under which Macs keep the files
vocabulary  every enumeration
"""
