"""What the model has generated, whatever the dialect. Pure.

parts     the pieces of an answer: text, thoughts, tool calls, its end
assembly  a rank's tokens become parts
blocks    parts as blocks of one kind each
calls     tool calls in JSON, piece by piece
writer    what each dialect's writer can do
"""
