"""The intake: a process that turns request bodies into checked requests in tokens. Rank 0's supervisor owns it.

Everything that clients' bytes can make slow happens here, where the kernel can end it: parsing, the model's chat template,
tokenizing, and parsing what the model wrote as tool calls. Each question has a second of CPU and a gibibyte. One that needs
more fails and ends the process; the supervisor starts the next.

__main__   ``python -m thunderfleet_runner.intake``
limits     CPU time and memory of the process
pooling    whether the model makes vectors of texts; pure
tokenizer  the model's tokenizer and chat template
answering  questions and their answers
"""
