"""What the model has generated, whatever the dialect. Pure.

parts     the pieces of an answer: text, thoughts, tool calls, its end
assembly  a rank's tokens become parts
blocks    parts as blocks of one kind each
forced    the tool calls in an answer that must be one
writer    what each dialect's writer can do
"""
