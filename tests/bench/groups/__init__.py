"""Figures of groups: how they form and recover, what they prove, how they serve.

serving      many clients at once
cables       groups that lose their cable or their supervisor
proofs       what groups prove before they serve: what it costs, false alarms, what it finds
formation    how soon groups form and recover
masks        forced formats on a rank, without a cluster
dialects     the HTTP API: a second turn's prompt cache, Anthropic's dialect beside OpenAI's
speculation  speculative decoding with mlx-lm's own generator
"""
