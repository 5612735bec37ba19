"""Planning in a process of its own: whatever a fleet and a request are made of, the operator's event loop goes on.

planner   which question is answered next, and what is done with the answer
answers   the answers that are there, and whether they still hold
process   the process that answers: started when it is needed, ended when it hangs, grows or idles
child     that process's program
wire      the messages between both
"""
