"""One measurement with MLX in a process of its own, so that neither MLX nor a crash stays in the agent.

parent    the agent's side: starts the process, passes on its messages, ends it
child     the process: `thunderfleet-agent measure-child ORDER`
guard     a process beside the child that ends it when its agent is gone or its time is over
pipe      the child's messages: JSON lines out, JSON lines in
gpu       GPU compute and memory bandwidth
pair      one rank of a group of two
warm_up   when a warm-up has come to rest, and which runs count; pure
"""
