"""What a client requests, whatever the dialect. Pure, except for the model, which is an argument.

call         a checked request
fields       the fields of a body, read one by one
refusals     fields that would change the answer and cannot be honored
sampling     how tokens are sampled, and where an answer stops
messages     the messages of a chat
tools        functions that the model may call, and which of them it must
constraints  formats that an answer must have: JSON, a schema, a regular expression, a grammar
templates    arguments of the model's chat template
names        names by which clients may call the model
"""
