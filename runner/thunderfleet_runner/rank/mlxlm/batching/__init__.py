"""What the serving loop does for the requests that it computes together.

pipelines  prompts in a pipeline
prompts    the prompt cache
logits     a hash of logits
masking    the masks of a batch's answers
steps      work between the loop's steps: counts, digests, new requests
"""
