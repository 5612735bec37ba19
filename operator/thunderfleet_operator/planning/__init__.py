"""Planning in a separate process, so that no fleet and no request can block the operator's event loop.

planner   which question is answered next, and what happens with the answer
fairqueue  who waits for an answer: namespaces take turns
answers   the answers, and whether they are still valid
process   the process that answers: started when it is needed, ended when it hangs, grows or idles
child     that process's program
wire      the messages between both
"""
