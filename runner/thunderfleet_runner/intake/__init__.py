"""The intake: a process that turns request bodies into checked requests in tokens. Rank 0's supervisor owns it.

All work that clients' bytes can make slow is done here, where the kernel can end it: parsing, the model's chat template,
tokenizing, and parsing the tool calls of the model. Each question may take a second of CPU and a gibibyte of memory. A question
that needs more fails and ends the process; the supervisor starts the next one.

__main__   ``python -m thunderfleet_runner.intake``
limits     CPU time and memory of the process
pooling    whether the model computes embeddings; pure
tokenizer  the model's tokenizer and chat template
answering  questions and their answers
"""
